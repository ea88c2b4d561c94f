// Synchronous steps that need only the first K pushes (backup workers).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Three workers with batches of 2; two of them make a step.
FakeSetup BackupSetup() {
  FakeSetup setup = SmallSetup();
  setup.options.workers = 3;
  setup.options.policy.pushes_min = 2;
  setup.batch_sizes = {2, 2, 2};
  setup.plan.train_samples = 12;
  return setup;
}

FakeSetup GlobalBackupSetup() {
  FakeSetup setup = BackupSetup();
  setup.options.policy.normalization = NormalizationKind::kGlobal;
  return setup;
}

ReduceKey Forward(int64_t step) { return {.step = Version(step)}; }

TEST(CoordinatorBackupTest, TheFirstKCompletePushesMakeTheStep) {
  FakeCohort cohort(BackupSetup());
  cohort.Start();
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
  FakeCohort cohort(BackupSetup());
  cohort.Start();
  const PushKey late = cohort.key(kRank1);
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank2, PushOf(1));
  const auto aborted = cohort.All<effect::StepAborted>();
  ASSERT_EQ(aborted.size(), 1);
  EXPECT_EQ(aborted[0].session, cohort.session(kRank1));
  EXPECT_EQ(aborted[0].reason, "step 0 commits with the first 2 pushes");
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank1).version, Version(1));

  // The worker's push of the old step changes nothing, and closing it is
  // answered.
  cohort.Clear();
  Effects out;
  const Sender sender = cohort.sender(kRank1);
  const Instant now = absl::Seconds(101);
  ASSERT_TRUE(cohort.core().Open(sender, late, {.samples = 2}, now, out).ok());
  ASSERT_TRUE(cohort.core()
                  .Close(sender, late,
                         {.batch_norm_calls = {1},
                          .moments = {{.moments = PushOf(1).moments}}},
                         now, out)
                  .ok());
  const auto* sent = std::get_if<effect::SendVerdict>(&out.back());
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(sent->verdict.verdict, Verdict::kDropped);
  EXPECT_THAT(sent->verdict.reason, HasSubstr("commits with"));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorBackupTest, ALatePushThatHadBegunIsAnsweredOnce) {
  FakeCohort cohort(BackupSetup());
  cohort.Start();
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
  FakeCohort cohort(BackupSetup());
  cohort.Start();
  std::vector<int64_t> begins;
  while (cohort.told(kRank0).kind == AssignmentKind::kTrain) {
    begins.push_back(cohort.told(kRank0).range.begin);
    cohort.Push(kRank0, PushOf(0));
    cohort.Push(kRank1, PushOf(0));
  }
  EXPECT_THAT(begins, ElementsAre(0, 6));
  // Schedules count the samples that were handed out.
  EXPECT_EQ(cohort.core().Status(absl::Seconds(200)).samples, 12);
  EXPECT_EQ(cohort.All<effect::Committed>()[0].record.commit_samples, 4);
}

TEST(CoordinatorBackupTest, UnderGlobalNormalisationTheFirstMomentsDecide) {
  FakeCohort cohort(GlobalBackupSetup());
  cohort.Start();
  const Moments one{.count = 2, .first = {1}, .second = {0}};
  const Moments three{.count = 2, .first = {3}, .second = {0}};
  ASSERT_TRUE(cohort.Reduce(kRank2, Forward(0), three).ok());
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
  ASSERT_TRUE(cohort.Reduce(kRank1, Forward(0), one).ok());
  const auto results = cohort.All<effect::ReduceResult>();
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].rank, kRank1);
  EXPECT_EQ(results[1].rank, kRank2);
  EXPECT_EQ(results[0].moments->count, 4);
  EXPECT_THAT(results[0].moments->first, ElementsAre(2));
  EXPECT_EQ(cohort.All<effect::StepAborted>().size(), 1);

  // The third worker is too late for the rendezvous and for the push.
  cohort.Clear();
  ASSERT_TRUE(cohort.Reduce(kRank0, Forward(0), one).ok());
  ASSERT_EQ(cohort.All<effect::ReduceAborted>().size(), 1);
  cohort.Push(kRank1, PushOf(1));
  cohort.Push(kRank2, PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 1, 2));
}

TEST(CoordinatorBackupTest, ALateRankIsNotWaitedFor) {
  FakeCohort cohort(BackupSetup());
  cohort.Start();
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
  FakeSetup setup = BackupSetup();
  setup.options.on_worker_loss = OnWorkerLoss::kContinue;
  FakeCohort cohort(setup);
  cohort.Start();
  cohort.Push(kRank0, PushOf(1));
  cohort.Leave(kRank1);
  cohort.Leave(kRank2);
  // One is left, and its push is there.
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
}

TEST(CoordinatorBackupTest, ALostMemberEndsTheAttempt) {
  FakeSetup setup = GlobalBackupSetup();
  setup.options.on_worker_loss = OnWorkerLoss::kContinue;
  FakeCohort cohort(setup);
  cohort.Start();
  const Moments moments{.count = 2, .first = {1}, .second = {0}};
  ASSERT_TRUE(cohort.Reduce(kRank0, Forward(0), moments).ok());
  ASSERT_TRUE(cohort.Reduce(kRank1, Forward(0), moments).ok());
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  // All remaining ranks take part in the repetition, including the dropped one.
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  EXPECT_EQ(cohort.told(kRank2).attempt, Attempt(1));
}

}  // namespace
}  // namespace cohort
