// The observations that commits report.

#include "server/core/statistics/observation.h"

#include <cmath>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Duration Ms(int64_t ms) { return absl::Milliseconds(ms); }

Moments OneChannel(int64_t count, double mean, double m2) {
  return {.count = count, .first = {mean}, .second = {m2}};
}

ReduceKey KeyOf(const Assignment& told, ReducePhase phase) {
  return {
      .step = told.version, .attempt = told.attempt, .place = {.phase = phase}};
}

CommitObservation Last(const FakeCohort& cohort) {
  const auto committed = cohort.All<effect::Committed>();
  return committed.empty() ? CommitObservation() : committed.back().observation;
}

TEST(DriftTest, CountsStandardDeviations) {
  // Channels are 2 and 0 deviations off: root of (4 + 0) / 2.
  const Moments batch{.count = 4, .first = {5, 7}, .second = {0, 0}};
  EXPECT_DOUBLE_EQ(Drift(batch, {1, 7}, {3, 100}, 1), std::sqrt(2.0));
  EXPECT_EQ(Drift({.count = 0, .first = {5}, .second = {0}}, {1}, {3}, 1), 0);
}

TEST(DriftTest, OfAStepIsTheLargestOverWorkersAndCalls) {
  const std::vector<BatchNormSpec> layers = {
      {.name = "a", .channels = 1, .epsilon = 0},
      {.name = "b", .channels = 1, .epsilon = 0}};
  // Layer a: means 0 and 4 of 1 and 3 elements, together 3, variance 3. Rank 0
  // is 3 off and rank 1 is 1 off. Layer b: equal.
  const std::vector<RankMoments> ranks = {
      {.rank = kRank0,
       .calls = {{.layer = 0, .moments = OneChannel(1, 0, 0)},
                 {.layer = 1, .moments = OneChannel(1, 2, 1)}}},
      {.rank = kRank1,
       .calls = {{.layer = 0, .moments = OneChannel(3, 4, 0)},
                 {.layer = 1, .moments = OneChannel(1, 2, 1)}}}};
  const std::vector<LayerDrift> drift = StepDrift(layers, ranks);
  ASSERT_EQ(drift.size(), 2);
  EXPECT_EQ(drift[0].layer, 0);
  EXPECT_DOUBLE_EQ(drift[0].ratio, 3 / std::sqrt(3.0));
  EXPECT_EQ(drift[1].ratio, 0);
  EXPECT_THAT(StepDrift(layers, {ranks[0]}), IsEmpty());
}

TEST(CommitObservationTest, TellsWhoClosedLastAndHowLongOthersWaited) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank1, {});
  cohort.Pass(Ms(30));
  cohort.Push(kRank0, {});
  const CommitObservation seen = Last(cohort);
  EXPECT_THAT(seen.barrier_waits, ElementsAre(Ms(30), Ms(0)));
  EXPECT_EQ(seen.last_arrival, kRank0);
  EXPECT_EQ(seen.aggregation, Ms(0));
}

TEST(CommitObservationTest, TellsHowLongEachRendezvousHeldItsMembers) {
  StartedCohort cohort(GlobalSetup());
  const auto reduce = [&](Rank rank, ReducePhase phase) {
    ExpectOk(cohort.Reduce(rank, KeyOf(cohort.told(rank), phase),
                           OneChannel(rank == kRank0 ? 3 : 1, 1, 1)));
  };
  reduce(kRank0, ReducePhase::kForward);
  cohort.Pass(Ms(40));
  reduce(kRank1, ReducePhase::kForward);
  reduce(kRank1, ReducePhase::kBackward);
  cohort.Pass(Ms(7));
  reduce(kRank0, ReducePhase::kBackward);
  cohort.PushBoth({});
  const CommitObservation seen = Last(cohort);
  EXPECT_THAT(seen.forward.waits, ElementsAre(Ms(40), Ms(0)));
  EXPECT_THAT(seen.forward.last, ElementsAre(kRank1));
  EXPECT_THAT(seen.backward.waits, ElementsAre(Ms(0), Ms(7)));
  EXPECT_THAT(seen.backward.last, ElementsAre(kRank0));
}

TEST(CommitObservationTest, DriftIsSampled) {
  FakeSetup setup = SmallSetup();
  setup.options.epochs = kDriftEvery;
  // No evaluation comes between the steps.
  setup.plan.test_samples = 0;
  StartedCohort cohort(setup);
  for (int64_t step = 0; step <= kDriftEvery; ++step) {
    cohort.PushBoth({.moments = OneChannel(3, 0, 3)},
                    {.moments = OneChannel(1, 4, 0)});
    const auto measures = cohort.All<effect::MeasureDrift>();
    ASSERT_EQ(measures.size(), step % kDriftEvery == 0 ? 1 : 0) << step;
    cohort.Clear();
    if (measures.empty()) continue;
    // 3 elements around 0 and one at 4: mean 1, variance 6/4 + 3*16/4/4.
    const std::vector<LayerDrift> drift =
        StepDrift(measures[0].model->layout.batch_norms, *measures[0].moments);
    ASSERT_EQ(drift.size(), 1);
    EXPECT_NEAR(drift[0].ratio, 3 / std::sqrt(3.75), 1e-4);
  }
}

TEST(CommitObservationTest, AnArrivalIsAloneAndIsComparedWithMovingStatistics) {
  StartedCohort cohort(AsyncSetup());
  cohort.HoldFolds();
  // Moving mean 0 and variance 1 at the start.
  cohort.Push(kRank0, {.moments = OneChannel(2, 3, 2)});
  cohort.Pass(Ms(25));
  cohort.RunFolds();
  const CommitObservation seen = Last(cohort);
  EXPECT_THAT(seen.barrier_waits, ElementsAre(Ms(25)));
  EXPECT_EQ(seen.last_arrival, std::nullopt);
  ASSERT_EQ(seen.drift.size(), 1);
  EXPECT_NEAR(seen.drift[0].ratio, 3, 1e-4);
}

TEST(StatusViewTest, NamesWhoHoldsTheOthersUpAndUntilWhen) {
  FakeSetup setup = SmallSetup();
  setup.options.step_deadline = absl::Seconds(30);
  StartedCohort cohort(setup);
  cohort.Push(kRank1, {});
  const auto status = [&cohort] { return cohort.Status(); };
  EXPECT_EQ(status().state, "training, 2 of 2 workers");
  EXPECT_THAT(status().waited_for, IsEmpty());
  EXPECT_EQ(status().workers[0].activity, "computing");
  EXPECT_EQ(status().workers[1].activity, "waiting");
  cohort.Pass(Ms(4200));
  EXPECT_EQ(status().state, "waiting for worker 0, 4.2 s, gives up in 25.8 s");
  EXPECT_THAT(status().waited_for, ElementsAre(kRank0));
  EXPECT_EQ(status().waiting, Ms(4200));
  cohort.Push(kRank0, {});
  EXPECT_THAT(status().waited_for, IsEmpty());
}

TEST(StatusViewTest, NamesTheSlowestThatTheLeadIsBoundedBy) {
  FakeSetup setup = AsyncSetup();
  setup.options.policy = {.aggregation = AggregationKind::kBounded,
                          .lead_max = 1};
  setup.plan.train_samples = 40;
  StartedCohort cohort(setup);
  cohort.Push(kRank0, {});
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  cohort.Pass(absl::Seconds(3));
  const StatusView view = cohort.Status();
  EXPECT_THAT(view.waited_for, ElementsAre(kRank1));
  EXPECT_EQ(view.waiting, absl::Seconds(3));
  EXPECT_EQ(view.workers[0].activity, "waiting");
}

TEST(StatusViewTest, CountsVacanciesByReason) {
  StartedCohort cohort(SmallSetup());
  cohort.BreakSession(kRank0);
  cohort.Pass(absl::Seconds(1));
  ASSERT_TRUE(cohort.Evict(kRank1).ok());
  const StatusView view = cohort.Status();
  EXPECT_EQ(view.vacancies.at(VacancyReason::kDisconnect), 1);
  EXPECT_EQ(view.vacancies.at(VacancyReason::kAdmin), 1);
  EXPECT_EQ(view.vacancies.at(VacancyReason::kLease), 0);
  EXPECT_THAT(view.waited_for, ElementsAre(kRank0, kRank1));
  EXPECT_EQ(view.workers[0].activity, "vacant");
}

TEST(StatusViewTest, CountsWhatBecameOfMoments) {
  StartedCohort cohort(SmallSetup());
  cohort.PushBoth({});
  const StatusView view = cohort.Status();
  EXPECT_EQ(view.statistics.folded, 2);
  EXPECT_EQ(view.statistics.dropped, 0);
  EXPECT_EQ(view.workers[0].pushes, 1);
  EXPECT_EQ(view.workers[0].lag_versions, 0);
}

}  // namespace
}  // namespace cohort
