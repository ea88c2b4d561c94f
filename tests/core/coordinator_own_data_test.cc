// Runs over data of the workers' own, and runs with a limit of steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/limits.h"
#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

FakeSetup OwnData(FakeSetup setup, int64_t max_steps) {
  setup.options.max_steps = max_steps;
  setup.plan.test_samples = 0;
  setup.plan.own_data = true;
  return Long(std::move(setup), 0);
}

FakePush SamplesOf(int64_t samples) { return {.samples = samples}; }

std::string EndReason(const FakeCohort& cohort) {
  const auto ended = cohort.All<effect::RunEnded>();
  return ended.empty() ? "" : ended.front().reason;
}

// ---- own data, sync

TEST(OwnDataTest, WorkersSayHowManySamplesThereWere) {
  StartedCohort cohort(OwnData(SmallSetup(), 2));
  EXPECT_TRUE(cohort.told(kRank0).range.empty());
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank1));
  cohort.PushBoth(SamplesOf(5), SamplesOf(2));
  const CommitRecord record = cohort.All<effect::Committed>()[0].record;
  EXPECT_EQ(record.commit_samples, 7);
  EXPECT_EQ(record.samples, 7);
  EXPECT_EQ(record.data_epoch, 0);
  EXPECT_FALSE(record.epoch_ended);
  // Two steps like the first one.
  EXPECT_EQ(cohort.Status().samples_total, 14);
  EXPECT_EQ(cohort.Status().epochs, 0);

  cohort.PushBoth(SamplesOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_TRUE(cohort.core().ended());
  EXPECT_EQ(EndReason(cohort), "all 2 steps are done");
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
}

TEST(OwnDataTest, CountsOutOfRangeAreRefused) {
  StartedCohort cohort(OwnData(SmallSetup(), 2));
  for (int64_t samples : {int64_t{-1}, limits::kBatchSizeMax + 1}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(cohort.Open(kRank0, SamplesOf(samples))));
  }
  EXPECT_TRUE(cohort.Open(kRank0, SamplesOf(limits::kBatchSizeMax)).ok());
}

TEST(OwnDataTest, APlanWithCountsIsRefused) {
  FakeSetup setup = OwnData(SmallSetup(), 2);
  setup.plan.test_samples = 1;
  FakeCohort cohort(setup);
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(cohort.Register(kRank0)));
}

// The push of a lost rank cannot be repeated: nothing has its samples.
TEST(OwnDataTest, ALostShareEndsTheAttemptEvenWhereTheRankIsWaitedFor) {
  StartedCohort cohort(OwnData(SmallSetup(), 3));
  const PushKey before = cohort.key(kRank1);
  ASSERT_TRUE(cohort.Open(kRank0, SamplesOf(3)).ok());
  cohort.Push(kRank1, {.w = {8, 8}, .samples = 1});
  cohort.Leave(kRank0);
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  // The other rank computes again, and the step waits for the replacement.
  EXPECT_GT(cohort.key(kRank1), before);
  EXPECT_EQ(cohort.told(kRank1).version, Version(0));
  cohort.Push(kRank1, {.w = {1, 0}, .samples = 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.StartOne(kRank0);
  ASSERT_TRUE(Trains(cohort, kRank0));
  EXPECT_EQ(cohort.told(kRank0).attempt, cohort.told(kRank1).attempt);
  cohort.Push(kRank0, {.w = {1, 0}, .samples = 2});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.All<effect::Committed>()[0].record.commit_samples, 3);
  // Scale 4 / 2, rate 0.5: nothing is left of the first attempt.
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 2, 2));
}

TEST(OwnDataTest, ARankThatWasGivenNothingEndsNoAttempt) {
  StartedCohort cohort(OwnData(SmallSetup(), 3));
  cohort.Push(kRank0, SamplesOf(1));
  cohort.Leave(kRank1);
  ASSERT_EQ(cohort.counter("steps_aborted"), 1);
  // The attempt that waits for the replacement continues if that is lost, too.
  ASSERT_TRUE(cohort.Join(kRank1).ok());
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
}

// A replacement has other samples. If it were given the step, the verdict would
// say that they count.
TEST(OwnDataTest, AReplacementIsNotGivenAStepWhosePushCountsAlready) {
  StartedCohort cohort(OwnData(SmallSetup(), 3));
  cohort.Push(kRank0, {.w = {1, 0}, .samples = 3});
  cohort.Leave(kRank0);
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  cohort.StartOne(kRank0);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  cohort.Push(kRank1, {.w = {1, 0}, .samples = 1});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.All<effect::Committed>()[0].record.commit_samples, 4);
  ASSERT_TRUE(Trains(cohort, kRank0));
  EXPECT_EQ(cohort.told(kRank0).version, Version(1));
  cohort.PushBoth(SamplesOf(2), SamplesOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_EQ(cohort.counter("replay_mismatches"), 0);
}

TEST(OwnDataTest, AReplacementTakesPartInTheRepetitionOfSuchAStep) {
  StartedCohort cohort(OwnData(WithWorkers(SmallSetup(), 3), 3));
  cohort.Push(kRank0, SamplesOf(1));
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  ASSERT_FALSE(Trains(cohort, kRank0));
  cohort.Leave(kRank1);
  ASSERT_EQ(cohort.counter("steps_aborted"), 1);
  ASSERT_TRUE(Trains(cohort, kRank0));
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
}

// A worker whose verdict was lost with its connection has to know whether its
// batch counts before it uses it again.
TEST(OwnDataTest, AClosingThatComesAgainIsToldWhatBecameOfThePush) {
  StartedCohort cohort(OwnData(SmallSetup(), 3));
  const PushKey key = cohort.key(kRank0);
  cohort.Push(kRank0, SamplesOf(3));
  cohort.BreakSession(kRank0);
  cohort.Push(kRank1, SamplesOf(1));
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
  const effect::SendVerdict sent = cohort.CloseAgain(kRank0, key);
  EXPECT_EQ(sent.key, key);
  EXPECT_EQ(sent.verdict.verdict, Verdict::kApplied);
  EXPECT_TRUE(sent.verdict.duplicate);
}

TEST(OwnDataTest, AReplacementOfOneOfTheFirstKWaitsForTheNextStep) {
  StartedCohort cohort(OwnData(FirstTwo(SmallSetup()), 3));
  ASSERT_TRUE(cohort.Open(kRank0, SamplesOf(2)).ok());
  cohort.Leave(kRank0);
  // Two are left, and two are enough.
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  cohort.StartOne(kRank0);
  EXPECT_FALSE(Trains(cohort, kRank0));
  cohort.Push(kRank1, SamplesOf(2));
  cohort.Push(kRank2, SamplesOf(2));
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_TRUE(Trains(cohort, kRank0));
}

// ---- own data, async

TEST(OwnDataTest, AsyncMakesNoMoreVersionsThanTheLimit) {
  StartedCohort cohort(OwnData(AsyncSetup(), 3));
  cohort.Push(kRank0, SamplesOf(2));
  // Version 1, and both ranks compute: there is room for both pushes.
  ASSERT_TRUE(Trains(cohort, kRank0));
  cohort.Push(kRank0, SamplesOf(1));
  // Version 2, and the push of rank 1 becomes the last.
  EXPECT_FALSE(Trains(cohort, kRank0));
  EXPECT_FALSE(cohort.core().ended());
  cohort.Push(kRank1, SamplesOf(4));
  EXPECT_EQ(cohort.snapshot()->version, Version(3));
  EXPECT_TRUE(cohort.core().ended());
  EXPECT_EQ(cohort.Status().samples, 7);
  EXPECT_EQ(EndReason(cohort), "all 3 steps are done");
}

TEST(OwnDataTest, ADroppedPushMakesRoomForAnotherOne) {
  FakeSetup setup = OwnData(AsyncSetup(), 2);
  setup.options.policy.staleness = {.rule = StalenessRule::kDrop,
                                    .versions_max = 0};
  StartedCohort cohort(setup);
  cohort.Push(kRank0, SamplesOf(1));
  ASSERT_FALSE(Trains(cohort, kRank0));
  // It is too stale. Both ranks could make the last version.
  cohort.Push(kRank1, SamplesOf(1));
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  ASSERT_NE(Trains(cohort, kRank0), Trains(cohort, kRank1));
  cohort.Push(Trains(cohort, kRank0) ? kRank0 : kRank1, SamplesOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_TRUE(cohort.core().ended());
}

TEST(OwnDataTest, ALostAsyncRankFreesItsStep) {
  StartedCohort cohort(Continuing(OwnData(AsyncSetup(), 1)));
  const Rank first = Trains(cohort, kRank0) ? kRank0 : kRank1;
  const Rank other = first == kRank0 ? kRank1 : kRank0;
  ASSERT_FALSE(Trains(cohort, other));
  cohort.Leave(first);
  ASSERT_TRUE(Trains(cohort, other));
  cohort.Push(other, SamplesOf(1));
  EXPECT_TRUE(cohort.core().ended());
}

// float64: the share of no samples is 0, and so is the change.
TEST(OwnDataTest, APushWithoutSamplesMovesNoStatistics) {
  StartedCohort cohort(OwnData(AsyncSetup(), 3));
  const StatisticsSets before = *cohort.snapshot()->statistics;
  const std::vector<float> weights = cohort.weights(0);
  cohort.Push(kRank0, {.w = {1, 1},
                       .moments = {.count = 2, .first = {5}, .second = {2}},
                       .samples = 0});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(*cohort.snapshot()->statistics, before);
  EXPECT_EQ(cohort.weights(0), weights);
}

// ---- schedules and checkpoints

TEST(OwnDataTest, SchedulesCountSteps) {
  FakeSetup setup = OwnData(SmallSetup(), 4);
  setup.options.optimizer.schedule = ScheduleKind::kPolynomial;
  setup.options.optimizer.poly_power = 1;
  StartedCohort cohort(setup);
  for (int i = 0; i < 4; ++i) cohort.PushBoth(SamplesOf(3 + i), SamplesOf(1));
  const auto commits = cohort.All<effect::Committed>();
  ASSERT_EQ(commits.size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(commits[static_cast<size_t>(i)].record.learning_rate,
                     0.5 * (1 - i / 4.0));
  }
}

TEST(OwnDataTest, ARestoredRunContinuesItsSteps) {
  for (FakeSetup setup : {SmallSetup(), AsyncSetup()}) {
    setup = OwnData(setup, 3);
    setup.options.checkpoint_every = 1;
    StartedCohort first(setup);
    first.PushBoth(SamplesOf(3), SamplesOf(2));
    const RunState state = first.All<effect::WriteCheckpoint>()[0].state;
    EXPECT_THAT(state.reissue, IsEmpty());
    EXPECT_EQ(state.cursor, 0);
    StartedCohort second(setup, &state);
    while (!second.core().ended()) {
      for (Rank rank : {kRank0, kRank1}) {
        if (Trains(second, rank)) second.Push(rank, SamplesOf(1));
      }
    }
    EXPECT_EQ(second.snapshot()->version, Version(3));
  }
}

TEST(OwnDataTest, SettingsThatNeedNumbersAreRefusedDuringTheRun) {
  StartedCohort cohort(OwnData(SmallSetup(), 4));
  for (const SettingValues& bad :
       std::vector<SettingValues>{{{"bn_statistics", "after"}},
                                  {{"schedule", "step"}, {"step_epochs", "1"}},
                                  {{"warmup_epochs", "1"}}}) {
    EXPECT_THAT(cohort.Change(bad),
                IsError(kFailedPrecondition, bad.begin()->first));
  }
  EXPECT_TRUE(cohort.Change({{"aggregation", "async"}}).ok());
}

// ---- numbered data with a limit of steps

// Eight samples and two steps an epoch.
FakeSetup Limited(int64_t max_steps) {
  FakeSetup setup = SmallSetup();
  setup.options.epochs = 5;
  setup.options.max_steps = max_steps;
  return setup;
}

void Step(FakeCohort& cohort) {
  cohort.EvaluateAll();
  cohort.PushBoth({});
}

TEST(MaxStepsTest, ARunEndsWithinAnEpochAfterATest) {
  StartedCohort cohort(Limited(3));
  for (int i = 0; i < 3; ++i) Step(cohort);
  EXPECT_EQ(cohort.snapshot()->version, Version(3));
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  EXPECT_EQ(cohort.told(kRank0).version, Version(3));
  cohort.EvaluateAll();
  EXPECT_TRUE(cohort.core().ended());
  EXPECT_EQ(EndReason(cohort), "all 3 steps are done");
}

// Whichever ends first: 40 samples of data, or 3 steps of 4.
TEST(MaxStepsTest, TheStatusShowsTheSamplesOfTheLimit) {
  StartedCohort cohort(Limited(3));
  const auto planned = [&cohort] { return cohort.Status().samples_total; };
  EXPECT_EQ(planned(), 40);
  Step(cohort);
  EXPECT_EQ(planned(), 12);
  StartedCohort long_one(Limited(1000));
  Step(long_one);
  EXPECT_EQ(long_one.Status().samples_total, 40);
}

// Two steps are an epoch, whichever limit comes first.
TEST(MaxStepsTest, ALimitAtTheEndOfAnEpochTestsOnce) {
  for (const int64_t max_steps : {2, 100}) {
    FakeSetup setup = Limited(max_steps);
    if (max_steps > 2) setup.options.epochs = 1;
    StartedCohort cohort(setup);
    for (int i = 0; i < 2; ++i) Step(cohort);
    cohort.EvaluateAll();
    EXPECT_TRUE(cohort.core().ended());
    EXPECT_EQ(cohort.All<effect::Evaluated>().size(), 1);
    EXPECT_EQ(EndReason(cohort), max_steps == 2 ? "all 2 steps are done"
                                                : "all 1 epochs are done");
  }
}
// The server may go between the last step and the end of its test.
TEST(MaxStepsTest, ARestartAfterTheLastStepTestsAgain) {
  for (const int64_t max_steps : {2, 3}) {
    FakeSetup setup = Checkpointing(Limited(max_steps));
    StartedCohort first(setup);
    for (int i = 0; i < max_steps; ++i) Step(first);
    const auto writes = first.All<effect::WriteCheckpoint>();
    StartedCohort second(setup, &writes.back().state);
    EXPECT_FALSE(second.core().ended());
    EXPECT_EQ(second.told(kRank0).kind, AssignmentKind::kEvaluate);
    second.EvaluateAll();
    EXPECT_TRUE(second.core().ended());
    EXPECT_EQ(second.snapshot()->version, Version(max_steps));
    EXPECT_EQ(second.All<effect::Evaluated>().size(), 1);
  }
}

// ---- equal batches

constexpr char kSameBatches[] = "ranks 0 and 1 train the same batches";

TEST(OwnDataTest, RanksThatTrainTheSameBatchesAreNamedOnce) {
  StartedCohort cohort(OwnData(SmallSetup(), 20));
  const auto step = [&cohort](uint64_t zero, uint64_t one) {
    FakePush push = SamplesOf(2);
    push.batch_digest = zero;
    cohort.Push(kRank0, push);
    push.batch_digest = one;
    cohort.Push(kRank1, push);
  };
  step(7, 7);
  step(0, 0);
  step(8, 8);
  EXPECT_THAT(cohort.log(), Not(HasSubstr(kSameBatches)));
  EXPECT_EQ(cohort.Status().data_problem, "");
  step(9, 9);
  EXPECT_THAT(cohort.log(), HasSubstr(kSameBatches));
  EXPECT_THAT(cohort.Status().data_problem, HasSubstr(kSameBatches));
  const size_t logged = cohort.All<effect::Log>().size();
  step(10, 10);
  EXPECT_EQ(cohort.All<effect::Log>().size(), logged);
}

TEST(OwnDataTest, AsyncPushesAreComparedWithThoseOfOtherRanks) {
  StartedCohort cohort(OwnData(AsyncSetup(), 20));
  for (const Rank rank : {kRank0, kRank1}) {
    for (uint64_t digest : {7, 8, 9}) {
      FakePush push = SamplesOf(2);
      push.batch_digest = digest;
      cohort.Push(rank, push);
    }
  }
  EXPECT_THAT(cohort.log(), HasSubstr(kSameBatches));
}

}  // namespace
}  // namespace cohort
