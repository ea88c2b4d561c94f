// Bounded lead (SSP), and the handling of stale pushes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"

namespace cohort {
namespace {

using testing::ElementsAre;

FakeSetup BoundedSetup(int64_t lead_max) {
  FakeSetup setup = Long(AsyncSetup());
  setup.options.policy = {.aggregation = AggregationKind::kBounded,
                          .lead_max = lead_max};
  return setup;
}

FakeSetup StaleSetup(const StalenessOptions& staleness) {
  FakeSetup setup = Long(AsyncSetup());
  setup.options.policy.staleness = staleness;
  return setup;
}

TEST(CoordinatorBoundedTest, ARankWaitsForTheSlowestAtTheBound) {
  StartedCohort cohort(BoundedSetup(2));
  cohort.Push(kRank0, PushOf(0));
  EXPECT_TRUE(Trains(cohort, kRank0));
  cohort.Push(kRank0, PushOf(0));
  EXPECT_FALSE(Trains(cohort, kRank0));

  // One push of the slowest rank lets it continue.
  cohort.Push(kRank1, PushOf(0));
  EXPECT_TRUE(Trains(cohort, kRank0));
}

TEST(CoordinatorBoundedTest, ALostRankHoldsTheMinimumUnderWaitOnly) {
  for (const bool waits : {true, false}) {
    FakeSetup setup = BoundedSetup(1);
    setup.options.on_worker_loss =
        waits ? OnWorkerLoss::kWait : OnWorkerLoss::kContinue;
    StartedCohort cohort(setup);
    cohort.Push(kRank0, PushOf(0));
    EXPECT_FALSE(Trains(cohort, kRank0));
    cohort.Leave(kRank1);
    EXPECT_EQ(Trains(cohort, kRank0), !waits);
  }
}

TEST(CoordinatorBoundedTest, APushThatWaitsForItsTurnCountsForItsSender) {
  StartedCohort cohort(BoundedSetup(1));
  cohort.HoldFolds();
  cohort.Push(kRank0, PushOf(0));
  cohort.BreakSession(kRank0);
  ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
  EXPECT_FALSE(Trains(cohort, kRank0));
  cohort.RunFolds();
  EXPECT_FALSE(Trains(cohort, kRank0));
  cohort.Push(kRank1, PushOf(0));
  cohort.RunFolds();
  EXPECT_TRUE(Trains(cohort, kRank0));
}

TEST(CoordinatorBoundedTest, WhoComesAnewStartsBesideTheSlowest) {
  StartedCohort cohort(Continuing(BoundedSetup(1)));
  cohort.Leave(kRank1);
  for (int i = 0; i < 5; ++i) cohort.Push(kRank0, PushOf(0));
  cohort.StartOne(kRank1);
  EXPECT_TRUE(Trains(cohort, kRank1));
  cohort.Push(kRank0, PushOf(0));
  EXPECT_FALSE(Trains(cohort, kRank0));
  cohort.Push(kRank1, PushOf(0));
  EXPECT_TRUE(Trains(cohort, kRank0));
}

TEST(CoordinatorStalenessTest, KeepAppliesWhateverTheAge) {
  StartedCohort cohort(StaleSetup({}));
  for (int i = 0; i < 4; ++i) cohort.Push(kRank0, PushOf(0));
  cohort.Push(kRank1, PushOf(4));
  const PushVerdict verdict = cohort.All<effect::SendVerdict>().back().verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kApplied);
  EXPECT_EQ(verdict.staleness_versions, 4);
  EXPECT_EQ(cohort.All<effect::Committed>().back().record.staleness_versions,
            4);
  EXPECT_EQ(cohort.core().Status({}).staleness,
            (StalenessCounts{{0, 4}, {4, 1}}));
  // Scale 4/2, rate 0.5, share 2/4: 4 * 2 * 0.25.
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 2, 2));
}

TEST(CoordinatorStalenessTest, ScaleDampsGradientAndSaysByHowMuch) {
  StartedCohort cohort(
      StaleSetup({.rule = StalenessRule::kScale, .versions_free = 2}));
  for (int i = 0; i < 3; ++i) cohort.Push(kRank0, PushOf(0));
  cohort.Push(kRank1, PushOf(4));
  const PushVerdict verdict = cohort.All<effect::SendVerdict>().back().verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kDamped);
  EXPECT_EQ(verdict.weight, 0.5);
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 1, 2));
  EXPECT_EQ(cohort.counter("pushes_applied"), 4);
}

TEST(CoordinatorStalenessTest, DropLeavesWeightsStatisticsAndVersionAlone) {
  StartedCohort cohort(
      StaleSetup({.rule = StalenessRule::kDrop, .versions_max = 2}));
  for (int i = 0; i < 3; ++i) cohort.Push(kRank0, PushOf(0));
  const SharedSnapshot before = cohort.snapshot();
  const IndexRange dropped = cohort.told(kRank1).range;
  cohort.Push(kRank1, PushOf(4));
  const PushVerdict verdict = cohort.All<effect::SendVerdict>().back().verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kDropped);
  EXPECT_EQ(verdict.staleness_versions, 3);
  EXPECT_EQ(cohort.snapshot()->pin, before->pin);
  EXPECT_EQ(WeightChecksums(*cohort.snapshot()), WeightChecksums(*before));
  EXPECT_EQ(cohort.counter("pushes_applied"), 3);
  EXPECT_EQ(cohort.counter("pushes_dropped"), 1);
  // Samples of the dropped push are not issued again.
  EXPECT_GE(cohort.told(kRank1).range.begin, dropped.end);
  EXPECT_EQ(cohort.core().Status(absl::Seconds(200)).samples, 8);
}

TEST(CoordinatorStalenessTest, TheRunEndsWhateverIsDropped) {
  FakeSetup setup =
      StaleSetup({.rule = StalenessRule::kDrop, .versions_max = 0});
  setup.plan.train_samples = 8;
  StartedCohort cohort(setup);
  for (int rounds = 0; !cohort.core().ended(); ++rounds) {
    ASSERT_LT(rounds, 20);
    for (Rank rank : {kRank0, kRank1}) {
      if (Trains(cohort, rank)) cohort.Push(rank, PushOf(0));
    }
    cohort.EvaluateAll();
  }
  EXPECT_EQ(cohort.counter("pushes_applied") + cohort.counter("pushes_dropped"),
            4);
  EXPECT_GT(cohort.counter("pushes_dropped"), 0);
}

}  // namespace
}  // namespace cohort
