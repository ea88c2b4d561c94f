// Members of a step whose batch-norm calls differ.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Rank kRank3{3};

// Workers with batches of one, and layers "bn" and "bn2".
FakeSetup Setup(FakeSetup setup, int32_t workers) {
  setup.options.workers = workers;
  setup.layout.batch_norms.push_back({.name = "bn2", .channels = 1});
  setup.batch_sizes.assign(static_cast<size_t>(workers), 1);
  return setup;
}
FakeSetup Global(int32_t workers) { return Setup(GlobalSetup(), workers); }
FakeSetup Local(int32_t workers) { return Setup(SmallSetup(), workers); }

FakeSetup OnLossContinue(FakeSetup setup) {
  setup.options.on_worker_loss = OnWorkerLoss::kContinue;
  return setup;
}

absl::Status Reduce(FakeCohort& cohort, Rank rank, int32_t layer,
                    int32_t call = 0) {
  return cohort.Reduce(rank,
                       {.step = cohort.told(rank).version,
                        .attempt = cohort.told(rank).attempt,
                        .place = {.layer = layer, .call = call}},
                       {.count = 1, .first = {0}, .second = {0}});
}

// Pushes everything of `rank`, and reports these calls.
void PushWith(FakeCohort& cohort, Rank rank,
              const std::vector<int32_t>& calls) {
  const bool local = !cohort.told(rank).global_normalization;
  ASSERT_TRUE(cohort.Open(rank, {}).ok());
  ASSERT_TRUE(cohort.Gradient(rank, 0, {0, 0}).ok());
  ASSERT_TRUE(cohort.Gradient(rank, 1, {0}).ok());
  PushClosing closing{.labels = 1, .batch_norm_calls = calls};
  for (size_t layer = 0; local && layer < calls.size(); ++layer) {
    for (int32_t call = 0; call < calls[layer]; ++call) {
      closing.moments.push_back(
          {.layer = static_cast<int32_t>(layer),
           .call = call,
           .moments = {.count = 1, .first = {0}, .second = {0}}});
    }
  }
  const absl::Status status = cohort.Close(rank, std::move(closing));
  ASSERT_TRUE(status.ok()) << status;
}

// All members call both layers once.
void ReduceAll(FakeCohort& cohort, const std::vector<Rank>& ranks) {
  for (int32_t layer : {0, 1}) {
    for (Rank rank : ranks) ASSERT_TRUE(Reduce(cohort, rank, layer).ok());
  }
}

std::vector<effect::SendVerdict> VerdictsOn(const FakeCohort& cohort,
                                            Rank rank) {
  std::vector<effect::SendVerdict> found;
  for (const auto& sent : cohort.All<effect::SendVerdict>()) {
    if (sent.rank == rank) found.push_back(sent);
  }
  return found;
}

// Rank 1 reports that it called bn2 twice; ranks 0 and 2 agree on once.
TEST(CoordinatorCallsTest, TheOneThatAllOthersAgreeAgainstIsFenced) {
  FakeCohort cohort(Local(3));
  cohort.Start();
  const PushKey key = cohort.key(kRank0);
  PushWith(cohort, kRank1, {1, 2});
  PushWith(cohort, kRank0, {1, 1});
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  PushWith(cohort, kRank2, {1, 1});
  const auto ended = cohort.All<effect::EndSession>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].session, cohort.session(kRank1));
  EXPECT_EQ(ended[0].status,
            absl::AbortedError("bn2: rank 1 made 2 calls in step 0, rank 0 "
                               "made 1; the other members agree"));
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  EXPECT_EQ(
      cohort.core().Status(cohort.now()).vacancies.at(VacancyReason::kMismatch),
      1);
  // Each push of the attempt is answered once.
  for (Rank rank : {kRank0, kRank2}) {
    const auto verdicts = VerdictsOn(cohort, rank);
    ASSERT_EQ(verdicts.size(), 1);
    EXPECT_EQ(verdicts[0].key, key);
    EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kDropped);
    EXPECT_FALSE(verdicts[0].verdict.duplicate);
    EXPECT_THAT(verdicts[0].verdict.reason, HasSubstr("bn2: rank 1 made 2"));
    EXPECT_EQ(verdicts[0].verdict.next.attempt, Attempt(1));
  }
}

TEST(CoordinatorCallsTest, UnderWaitItsReplacementMakesTheStepWithTheOthers) {
  FakeCohort cohort(Local(3));
  cohort.Start();
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {1, 2});
  PushWith(cohort, kRank2, {1, 1});
  for (Rank rank : {kRank0, kRank2}) PushWith(cohort, rank, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.StartOne(kRank1);
  EXPECT_EQ(cohort.told(kRank1).attempt, Attempt(1));
  PushWith(cohort, kRank1, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorCallsTest, UnderContinueTheOthersMakeTheStepWithoutIt) {
  FakeCohort cohort(OnLossContinue(Local(3)));
  cohort.Start();
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {0, 1});
  PushWith(cohort, kRank2, {1, 1});
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank2));
  for (Rank rank : {kRank0, kRank2}) PushWith(cohort, rank, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

// A later step and a new incarnation, which has not made a step in between.
TEST(CoordinatorCallsTest, AReplacementThatDoesItAgainEndsTheRun) {
  FakeSetup setup = OnLossContinue(Local(3));
  setup.options.epochs = 5;
  FakeCohort cohort(setup);
  cohort.Start();
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {0, 1});
  PushWith(cohort, kRank2, {1, 1});
  cohort.StartOne(kRank1);
  for (Rank rank : {kRank0, kRank2}) PushWith(cohort, rank, {1, 1});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {0, 1});
  PushWith(cohort, kRank2, {1, 1});
  const auto ended = cohort.All<effect::RunEnded>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].outcome, RunOutcome::kModelMismatch);
  EXPECT_EQ(ended[0].reason,
            "bn: rank 1 made 0 calls in step 1, rank 0 made 1; rank 1 was "
            "already replaced because of such a difference; start all workers "
            "with the same program and model");
}

TEST(CoordinatorCallsTest, ARankThatHasMadeAStepSinceIsFencedAgain) {
  FakeSetup setup = Local(3);
  setup.options.epochs = 5;
  FakeCohort cohort(setup);
  cohort.Start();
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {0, 1});
  PushWith(cohort, kRank2, {1, 1});
  cohort.StartOne(kRank1);
  for (Rank rank : {kRank0, kRank1, kRank2}) PushWith(cohort, rank, {1, 1});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {0, 1});
  PushWith(cohort, kRank2, {1, 1});
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_EQ(cohort.counter("workers_lost"), 2);
}

// Rank 1 skips bn2, where the others wait for it.
TEST(CoordinatorCallsTest, AMemberThatClosesWithoutALayerIsFencedAndItIsNamed) {
  FakeCohort cohort(Global(3));
  cohort.Start();
  for (Rank rank : {kRank0, kRank1, kRank2}) {
    ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
  }
  PushWith(cohort, kRank1, {1, 0});
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  ASSERT_TRUE(Reduce(cohort, kRank2, 1).ok());
  const auto ended = cohort.All<effect::EndSession>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].session, cohort.session(kRank1));
  EXPECT_EQ(ended[0].status.message(),
            "bn2: rank 0 waits in call 0 of step 0, but rank 1 has closed its "
            "push without this call; the other members agree");
  const auto aborted = cohort.All<effect::ReduceAborted>();
  ASSERT_EQ(aborted.size(), 2);
  EXPECT_EQ(aborted[0].rank, kRank0);
  EXPECT_EQ(aborted[1].rank, kRank2);
}

// It reports the right counts, but has sent no moments.
TEST(CoordinatorCallsTest, AMemberThatClosesWithoutItsMomentsIsFenced) {
  FakeCohort cohort(OnLossContinue(Global(3)));
  cohort.Start();
  PushWith(cohort, kRank2, {1, 1});
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  ASSERT_EQ(cohort.All<effect::EndSession>().size(), 1);
  EXPECT_EQ(cohort.All<effect::EndSession>()[0].session,
            cohort.session(kRank2));
  ReduceAll(cohort, {kRank0, kRank1});
  for (Rank rank : {kRank0, kRank1}) PushWith(cohort, rank, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

// With two members, it is unknown which one is right.
TEST(CoordinatorCallsTest, TwoMembersRepeatTheStepOnceAndThenTheRunEnds) {
  FakeCohort cohort(Local(2));
  cohort.Start();
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {0, 1});
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  for (Rank rank : {kRank0, kRank1}) {
    EXPECT_EQ(cohort.told(rank).attempt, Attempt(1));
    EXPECT_EQ(VerdictsOn(cohort, rank).size(), 1);
  }
  cohort.Clear();
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {0, 1});
  const auto ended = cohort.All<effect::RunEnded>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].outcome, RunOutcome::kModelMismatch);
  EXPECT_EQ(ended[0].reason,
            "bn: rank 1 made 0 calls in step 0, rank 0 made 1; step 0 was "
            "already repeated because of such a difference; start all workers "
            "with the same program and model");
  // Closed pushes are answered at the end of a run, too.
  for (Rank rank : {kRank0, kRank1}) {
    const auto verdicts = VerdictsOn(cohort, rank);
    ASSERT_EQ(verdicts.size(), 1);
    EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kDropped);
    EXPECT_EQ(verdicts[0].verdict.next.kind, AssignmentKind::kFinished);
  }
}

TEST(CoordinatorCallsTest, ARepetitionThatAgreesIsCommitted) {
  FakeCohort cohort(Global(2));
  cohort.Start();
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
  }
  PushWith(cohort, kRank1, {1, 0});
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  ReduceAll(cohort, {kRank0, kRank1});
  for (Rank rank : {kRank0, kRank1}) PushWith(cohort, rank, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
}

// Two against two: no majority.
TEST(CoordinatorCallsTest, WithoutAMajorityNobodyIsFenced) {
  FakeCohort cohort(Local(4));
  cohort.Start();
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {1, 0});
  PushWith(cohort, kRank2, {1, 1});
  PushWith(cohort, kRank3, {1, 0});
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
}

// Rank 0 calls bn twice, and rank 1 goes on to bn2. Neither call can ever be
// answered, and neither rank holds up the other more than it is held up.
TEST(CoordinatorCallsTest, CrossedCallsOfTwoRepeatTheStepAtTheStepDeadline) {
  FakeCohort cohort(Global(2));
  cohort.Start();
  for (int attempt : {0, 1}) {
    for (Rank rank : {kRank0, kRank1}) {
      ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
    }
    ASSERT_TRUE(Reduce(cohort, kRank0, 0, 1).ok());
    ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
    cohort.Pass(absl::Minutes(5));
    EXPECT_EQ(cohort.counter("steps_aborted"), attempt);
    cohort.Pass(absl::Seconds(1));
  }
  const auto ended = cohort.All<effect::RunEnded>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].outcome, RunOutcome::kModelMismatch);
  EXPECT_THAT(ended[0].reason,
              HasSubstr("the members of step 0 wait for each other: rank 0 in "
                        "call 1 of bn, rank 1 in call 0 of bn2; step 0 was "
                        "already repeated"));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
}

TEST(CoordinatorCallsTest, TheOneThatWaitsElsewhereThanAllOthersIsFenced) {
  FakeCohort cohort(Global(3));
  cohort.Start();
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
  ASSERT_TRUE(Reduce(cohort, kRank2, 0).ok());
  cohort.Pass(absl::Minutes(5));
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  cohort.Pass(absl::Seconds(1));
  const auto ended = cohort.All<effect::EndSession>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].session, cohort.session(kRank1));
  EXPECT_THAT(std::string(ended[0].status.message()),
              HasSubstr("rank 1 in call 0 of bn2"));
}

// The first incarnation of rank 0 made a call that its replacement omits.
TEST(CoordinatorCallsTest, ACallThatNobodyWaitsInAnyMoreIsNotCommitted) {
  FakeCohort cohort(Global(2));
  cohort.Start();
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
  }
  ASSERT_TRUE(Reduce(cohort, kRank0, 0, 1).ok());
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  PushWith(cohort, kRank1, {1, 0});
  PushWith(cohort, kRank0, {1, 0});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  EXPECT_THAT(
      cohort.log(),
      HasSubstr("bn: call 1 of step 0 is missing rank 1, which has closed "
                "its push without it"));
}

// Ranks 0 and 1 are one group; rank 2 is alone in the other.
FakeSetup Grouped() {
  FakeSetup setup = Global(3);
  setup.options.policy.normalization_group = 2;
  return setup;
}

// Rank 2 has finished the step; the pair never can.
TEST(CoordinatorCallsTest, CrossedCallsOfOneGroupRepeatTheStep) {
  FakeCohort cohort(Grouped());
  cohort.Start();
  ReduceAll(cohort, {kRank2});
  PushWith(cohort, kRank2, {1, 1});
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  cohort.Pass(absl::Minutes(5));
  cohort.Pass(absl::Seconds(2));
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  EXPECT_THAT(cohort.log(),
              HasSubstr("the members of step 0 wait for each other: rank 0 in "
                        "call 0 of bn, rank 1 in call 0 of bn2"));
  ASSERT_EQ(VerdictsOn(cohort, kRank2).size(), 1);
}

// Within the pair it is one against one, so rank 2's counts decide.
TEST(CoordinatorCallsTest, AnotherGroupsCountsMakeTheMajority) {
  FakeCohort cohort(Grouped());
  cohort.Start();
  PushWith(cohort, kRank1, {0, 0});
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  ReduceAll(cohort, {kRank2});
  PushWith(cohort, kRank2, {1, 1});
  const auto ended = cohort.All<effect::EndSession>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].session, cohort.session(kRank1));
  EXPECT_THAT(std::string(ended[0].status.message()),
              HasSubstr("bn: rank 0 waits in call 0 of step 0, but rank 1 has "
                        "closed its push without this call"));
}

// Alone in its group, rank 2 keeps no rank waiting, and it counts the same
// calls as the others.
TEST(CoordinatorCallsTest, AGroupOfOneThatCountsCallsItNeverMetInIsFenced) {
  FakeCohort cohort(Grouped());
  cohort.Start();
  PushWith(cohort, kRank2, {1, 1});
  ReduceAll(cohort, {kRank0, kRank1});
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  const auto ended = cohort.All<effect::EndSession>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].session, cohort.session(kRank2));
  EXPECT_THAT(std::string(ended[0].status.message()),
              HasSubstr("bn: rank 2 reports 1 calls in step 0, but took no "
                        "part in the rendezvous of call 0"));
}

// It is unknown which of the two is wrong.
TEST(CoordinatorCallsTest, AGroupThatDoesNotCountACallItMetInRepeatsTheStep) {
  FakeCohort cohort(Grouped());
  cohort.Start();
  ReduceAll(cohort, {kRank0, kRank1});
  PushWith(cohort, kRank0, {1, 0});
  PushWith(cohort, kRank1, {1, 0});
  ASSERT_TRUE(Reduce(cohort, kRank2, 0).ok());
  PushWith(cohort, kRank2, {1, 0});
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  EXPECT_THAT(cohort.log(),
              HasSubstr("bn2: rank 0 reports 0 calls in step 0, but took part "
                        "in the rendezvous of call 0"));
}

// The rank's push is complete, but its process is gone. There is no session to
// end, but the push does not count.
TEST(CoordinatorCallsTest, TheClosedPushOfALostRankDoesNotCountEither) {
  FakeCohort cohort(Local(3));
  cohort.Start();
  PushWith(cohort, kRank1, {0, 1});
  cohort.Leave(kRank1);
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank2, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
}

// The first moments would fix the members, but the only remaining candidate has
// closed its push without moments.
TEST(CoordinatorCallsTest, ACandidateThatClosedWithoutMomentsIsNotStuck) {
  FakeSetup setup = OnLossContinue(Global(3));
  setup.options.policy.pushes_min = 1;
  FakeCohort cohort(setup);
  cohort.Start();
  PushWith(cohort, kRank1, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.Leave(kRank0);
  cohort.Leave(kRank2);
  cohort.Pass(absl::Seconds(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

}  // namespace
}  // namespace cohort
