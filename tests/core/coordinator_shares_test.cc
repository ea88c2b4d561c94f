// Shares of a step that differ from the batch sizes: --shares.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

// Two ranks with batches of 4, at most 7 of the second; 20 samples an epoch.
FakeSetup Pair() {
  FakeSetup setup = Long(WithWorkers(GlobalSetup(), 2, 4), 20);
  setup.batch_sizes_max = {12, 7};
  return setup;
}

FakeSetup With(FakeSetup setup, const ShareOptions& shares) {
  setup.options.policy.shares = shares;
  return setup;
}

void ExpectRanges(FakeCohort& cohort, IndexRange first, IndexRange second) {
  EXPECT_EQ(cohort.told(kRank0).range, first);
  EXPECT_EQ(cohort.told(kRank1).range, second);
}

TEST(CoordinatorSharesTest, DivideEveryStepOfAnEpoch) {
  StartedCohort cohort(With(Pair(), {.weights = {3, 1}}));
  ExpectRanges(cohort, {.begin = 0, .end = 6}, {.begin = 6, .end = 8});
  cohort.PushBoth(PushOf(1));
  ExpectRanges(cohort, {.begin = 8, .end = 14}, {.begin = 14, .end = 16});
  cohort.PushBoth(PushOf(1));
  ExpectRanges(cohort, {.begin = 16, .end = 19}, {.begin = 19, .end = 20});
}

// The step in progress keeps its cut.
TEST(CoordinatorSharesTest, ChangeBetweenSteps) {
  StartedCohort cohort(Pair());
  ExpectOk(cohort.Change({{"shares", "3,1"}}));
  ExpectRanges(cohort, {.begin = 0, .end = 4}, {.begin = 4, .end = 8});
  cohort.PushBoth(PushOf(1));
  ExpectRanges(cohort, {.begin = 8, .end = 14}, {.begin = 14, .end = 16});
  EXPECT_EQ(cohort.Status().step_samples, 8);
  ExpectOk(cohort.Change({{"shares", "none"}}));
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{.begin = 16, .end = 20}));
}

TEST(CoordinatorSharesTest, AnAttemptThatIsRepeatedIsCutByTheSameShares) {
  StartedCohort cohort(With(Pair(), {.weights = {3, 1}}));
  cohort.Push(kRank0, PushOf(1));
  cohort.Leave(kRank1);
  cohort.StartOne(kRank1);
  ExpectRanges(cohort, {.begin = 0, .end = 6}, {.begin = 6, .end = 8});
}

TEST(CoordinatorSharesTest, TheRemainingRanksShareByTheirWeights) {
  FakeSetup setup = Continuing(Long(WithWorkers(GlobalSetup(), 3, 4), 40));
  StartedCohort cohort(With(std::move(setup), {.weights = {3, 1, 4}}));
  cohort.Leave(kRank2);
  ExpectRanges(cohort, {.begin = 0, .end = 6}, {.begin = 6, .end = 8});
}

TEST(CoordinatorSharesTest, AreLimitedByTheWorkersMost) {
  StartedCohort cohort(With(Pair(), {.weights = {1, 1000}}));
  ExpectRanges(cohort, {.begin = 0, .end = 1}, {.begin = 1, .end = 8});
}

TEST(CoordinatorSharesTest, AChangeBeyondTheWorkersMostIsRefused) {
  FakeSetup setup = Pair();
  setup.batch_sizes_max = {12, 6};
  StartedCohort cohort(setup);
  EXPECT_THAT(cohort.Change({{"shares", "1,9"}}),
              IsError(kFailedPrecondition,
                      "7 samples a step for rank 1, want at most 6"));
  ExpectOk(cohort.Change({{"shares", "1,3"}}));
}

TEST(CoordinatorSharesTest, AnotherSizeNeedsOtherWeights) {
  StartedCohort cohort(With(Pair(), {.weights = {3, 1}}));
  EXPECT_THAT(cohort.Change({{"workers", "1"}}),
              IsError(kInvalidArgument, "--shares: got 3,1"));
  ExpectOk(cohort.Change({{"workers", "1"}, {"shares", "none"}}));
}

TEST(CoordinatorSharesTest, AreRefusedForOwnData) {
  FakeSetup setup = Pair();
  setup.options.max_steps = 3;
  setup.plan.own_data = true;
  setup.plan.train_samples = 0;
  setup.plan.test_samples = 0;
  StartedCohort cohort(setup);
  EXPECT_THAT(cohort.Change({{"shares", "1,3"}}),
              IsError(kFailedPrecondition, "got --shares=1,3"));
}

TEST(CoordinatorSharesTest, AMostBelowTheBatchSizeIsRefused) {
  FakeSetup setup = Pair();
  setup.batch_sizes_max = {3, 4};
  FakeCohort cohort(setup);
  EXPECT_THAT(cohort.Join(kRank0),
              IsError(kInvalidArgument, "got batch_size_max 3, want 4"));
}

// ---- auto

void Report(FakeCohort& cohort, double first, double second) {
  // As many as a decision takes, and the first of other conditions.
  for (int i = 0; i < 16; ++i) {
    for (const auto& [rank, seconds] :
         {std::pair(kRank0, first), std::pair(kRank1, second)}) {
      cohort.core().Heartbeat(cohort.session(rank), cohort.now(),
                              {.phases = {{"data", seconds / 4},
                                          {"forward", seconds / 2},
                                          {"rendezvous", 100},
                                          {"backward", seconds / 4}}});
    }
    cohort.Pass(absl::Milliseconds(100));
  }
}

TEST(AutomaticSharesTest, GoByTheTimeOfASample) {
  StartedCohort cohort(With(Pair(), {.automatic = true}));
  cohort.Pass(absl::Milliseconds(100));
  Report(cohort, 1, 3);
  cohort.PushBoth(PushOf(1));
  ExpectRanges(cohort, {.begin = 8, .end = 14}, {.begin = 14, .end = 16});
  const PolicyRecord record = cohort.State()->policy_history.back();
  EXPECT_EQ(record.changed, (SettingValues{{"shares", "auto:6,2"}}));
  EXPECT_EQ(record.version, Version(1));
  // Now they take equally long.
  Report(cohort, 1.5, 1.5);
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.State()->policy_history.back(), record);
}

TEST(AutomaticSharesTest, WaitForEveryWorkersReports) {
  StartedCohort cohort(With(Pair(), {.automatic = true}));
  for (int i = 0; i < 60; ++i) {
    cohort.core().Heartbeat(cohort.session(kRank1), cohort.now(),
                            {.phases = {{"forward", 3}}});
    cohort.Pass(absl::Milliseconds(100));
  }
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.State()->policy_history.size(), 1U);
}

TEST(AutomaticSharesTest, NeedTheWorkersMost) {
  FakeSetup setup = Pair();
  setup.batch_sizes_max = {12, 0};
  StartedCohort cohort(setup);
  EXPECT_THAT(cohort.Change({{"shares", "auto"}}),
              IsError(kFailedPrecondition, "rank 1 has no --batch_size_max"));
  FakeCohort other(With(setup, {.automatic = true}));
  ExpectOk(other.Join(kRank0));
  EXPECT_THAT(other.Join(kRank1),
              IsError(kInvalidArgument, "--batch_size_max"));
}

TEST(AutomaticSharesTest, WeightsByHandEndThem) {
  StartedCohort cohort(With(Pair(), {.automatic = true}));
  ExpectOk(cohort.Change({{"shares", "1,1"}}));
  cohort.PushBoth(PushOf(1));
  Report(cohort, 1, 3);
  EXPECT_EQ(cohort.State()->settings.at("shares"), "1,1");
}

// ---- recorded changes

FakeSetup Planned(FakeSetup setup, std::vector<PlannedChange> planned) {
  setup.options.planned = std::move(planned);
  return setup;
}

TEST(PlannedChangeTest, TakesEffectAtItsVersion) {
  StartedCohort cohort(Planned(
      Pair(), {{.version = Version(1), .values = {{"shares", "3,1"}}},
               {.version = Version(1), .values = {{"learning_rate", "0.25"}}},
               {.version = Version(2), .values = {{"shares", "none"}}}}));
  ExpectRanges(cohort, {.begin = 0, .end = 4}, {.begin = 4, .end = 8});
  cohort.PushBoth(PushOf(1));
  ExpectRanges(cohort, {.begin = 8, .end = 14}, {.begin = 14, .end = 16});
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{.begin = 16, .end = 20}));
  std::vector<Version> versions;
  const RunState state = OkValue(cohort.State());
  for (const PolicyRecord& record : state.policy_history) {
    versions.push_back(record.version);
  }
  EXPECT_EQ(versions,
            (std::vector{Version(0), Version(1), Version(1), Version(2)}));
}

TEST(PlannedChangeTest, ARestoredRunMakesTheRest) {
  const FakeSetup setup = Checkpointing(Planned(
      Pair(), {{.version = Version(0), .values = {{"shares", "1,1"}}},
               {.version = Version(1), .values = {{"shares", "3,1"}}}}));
  StartedCohort cohort(setup);
  cohort.PushBoth(PushOf(1));
  const RunState state = OkValue(cohort.State());
  StartedCohort again(setup, &state);
  ExpectRanges(again, {.begin = 8, .end = 14}, {.begin = 14, .end = 16});
}

TEST(PlannedChangeTest, OneThatDoesNotFitEndsTheRun) {
  FakeSetup setup = Pair();
  setup.batch_sizes_max = {4, 4};
  StartedCohort cohort(
      Planned(setup, {{.version = Version(1), .values = {{"shares", "3,1"}}}}));
  cohort.PushBoth(PushOf(1));
  const std::vector<effect::RunEnded> ended = cohort.All<effect::RunEnded>();
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].outcome, RunOutcome::kRefused);
}

TEST(PlannedChangeTest, ReplacesWhatAutoWouldPropose) {
  StartedCohort cohort(
      Planned(With(Pair(), {.automatic = true}),
              {{.version = Version(1), .values = {{"shares", "auto:5,3"}}}}));
  Report(cohort, 1, 3);
  cohort.PushBoth(PushOf(1));
  ExpectRanges(cohort, {.begin = 8, .end = 13}, {.begin = 13, .end = 16});
  Report(cohort, 1, 3);
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.State()->settings.at("shares"), "auto:5,3");
}

}  // namespace
}  // namespace cohort
