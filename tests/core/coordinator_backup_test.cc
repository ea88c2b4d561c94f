// Synchronous steps that need only the first K pushes (backup workers).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;

using testing::IsEmpty;

TEST(CoordinatorBackupTest, TheFirstKCompletePushesMakeTheStep) {
  StartedCohort cohort(FirstTwo(SmallSetup()));
  cohort.Push(kRank2, PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.Push(kRank0, PushOf(3));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  // Scale 4 / (2 + 2), rate 0.5, gradients 1 and 3.
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 2, 2));
  EXPECT_THAT(cohort.All<effect::Committed>()[0].record.members,
              ElementsAre(kRank0, kRank2));
  EXPECT_EQ(cohort.counter("pushes_applied"), 2);
  EXPECT_EQ(cohort.counter("pushes_dropped"), 1);
}

TEST(CoordinatorBackupTest, WhoIsLateIsToldAndGetsTheNextStep) {
  StartedCohort cohort(FirstTwo(SmallSetup()));
  const PushKey late = cohort.key(kRank1);
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank2, PushOf(1));
  const auto aborted = cohort.Only<effect::StepAborted>();
  EXPECT_EQ(aborted.session, cohort.session(kRank1));
  EXPECT_EQ(aborted.reason, "step 0 commits with the first 2 pushes");
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank1).version, Version(1));

  // The worker's push of the old step changes nothing, and closing it is
  // answered.
  cohort.Clear();
  Effects out;
  ExpectOk(cohort.core().Open(cohort.sender(kRank1), late, {.samples = 2},
                              cohort.now(), out));
  EXPECT_EQ(cohort.CloseAgain(kRank1, late).verdict.verdict, Verdict::kDropped);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorBackupTest, ALatePushThatHadBegunIsAnsweredOnce) {
  StartedCohort cohort(FirstTwo(SmallSetup()));
  ASSERT_TRUE(cohort.Open(kRank1, PushOf(9)).ok());
  const PushKey late = cohort.key(kRank1);
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank2, PushOf(1));
  int answered = 0;
  for (const auto& sent : cohort.All<effect::SendVerdict>()) {
    if (sent.rank != kRank1 || sent.key != late) continue;
    ++answered;
    EXPECT_EQ(sent.verdict.verdict, Verdict::kDropped);
  }
  EXPECT_EQ(answered, 1);
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 1, 2));
}

TEST(CoordinatorBackupTest, DroppedRangesAreNotIssuedAgain) {
  StartedCohort cohort(FirstTwo(SmallSetup()));
  std::vector<int64_t> begins;
  while (cohort.told(kRank0).kind == AssignmentKind::kTrain) {
    begins.push_back(cohort.told(kRank0).range.begin);
    cohort.PushBoth(PushOf(0));
  }
  EXPECT_THAT(begins, ElementsAre(0, 6));
  // Schedules count the samples that were handed out.
  EXPECT_EQ(cohort.core().Status(absl::Seconds(200)).samples, 12);
  EXPECT_EQ(cohort.All<effect::Committed>()[0].record.commit_samples, 4);
}

TEST(CoordinatorBackupTest, UnderGlobalNormalisationTheFirstMomentsDecide) {
  StartedCohort cohort(FirstTwo(GlobalSetup()));
  const Moments one{.count = 2, .first = {1}, .second = {0}};
  const Moments three{.count = 2, .first = {3}, .second = {0}};
  ASSERT_TRUE(cohort.Reduce(kRank2, {}, three).ok());
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
  ASSERT_TRUE(cohort.Reduce(kRank1, {}, one).ok());
  const auto results = cohort.All<effect::ReduceResult>();
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].rank, kRank1);
  EXPECT_EQ(results[1].rank, kRank2);
  EXPECT_EQ(results[0].moments->count, 4);
  EXPECT_THAT(results[0].moments->first, ElementsAre(2));
  EXPECT_EQ(cohort.All<effect::StepAborted>().size(), 1);

  // The third worker is too late for the rendezvous and for the push.
  cohort.Clear();
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, one).ok());
  ASSERT_EQ(cohort.All<effect::ReduceAborted>().size(), 1);
  cohort.Push(kRank1, PushOf(1));
  cohort.Push(kRank2, PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 1, 2));
}

TEST(CoordinatorBackupTest, ALateRankIsNotWaitedFor) {
  StartedCohort cohort(FirstTwo(SmallSetup()));
  cohort.Push(kRank0, PushOf(0));
  EXPECT_EQ(cohort.core().Status(absl::Seconds(100)).state,
            "training, 3 of 3 workers");
  // Under `continue` the two that are left are enough.
  cohort.BreakSession(kRank1);
  cohort.Pass(absl::Seconds(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.Push(kRank2, PushOf(0));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorBackupTest, ALostCandidateLeavesTheStepToTheOthers) {
  StartedCohort cohort(Continuing(FirstTwo(SmallSetup())));
  cohort.Push(kRank0, PushOf(1));
  cohort.Leave(kRank1);
  cohort.Leave(kRank2);
  // One is left, and its push is there.
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
}

TEST(CoordinatorBackupTest, ALostMemberEndsTheAttempt) {
  StartedCohort cohort(Continuing(FirstTwo(GlobalSetup())));
  const Moments moments{.count = 2, .first = {1}, .second = {0}};
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, moments).ok());
  ASSERT_TRUE(cohort.Reduce(kRank1, {}, moments).ok());
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  // All remaining ranks take part in the repetition, including the dropped one.
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  EXPECT_EQ(cohort.told(kRank2).attempt, Attempt(1));
}

}  // namespace
}  // namespace cohort
