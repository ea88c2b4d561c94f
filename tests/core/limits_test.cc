// Numbers that no run can have are refused where they enter, so that no sum or
// product of accepted numbers overflows its type.

#include "common/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "server/core/coordinator.h"
#include "server/core/membership/initial_values.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int64_t kRanks = limits::kWorkersMax;
static_assert(limits::kBatchSizeMax <= kHuge / kRanks);
static_assert(limits::kSplitSamplesMax <=
              kHuge - kRanks * limits::kBatchSizeMax);
static_assert(limits::kSplitSamplesMax <= kHuge / (kRanks + 1));
static_assert(limits::kSplitSamplesMax <= kHuge / limits::kEpochsMax);
static_assert(limits::kLabelsMax <= kHuge / kRanks);
static_assert(limits::kMomentsCountMax <= kHuge / kRanks);
static_assert(limits::kMomentsCountMax <= kHuge / limits::kPreciseBatchesMax);

TEST(LimitsTest, ABatchSizeThatOverflowsTheCursorMayNotJoin) {
  FakeSetup setup = SmallSetup();
  for (int64_t batch : {kHuge, limits::kBatchSizeMax + 1, int64_t{-1}}) {
    setup.batch_sizes = {batch, 1};
    FakeCohort cohort(setup);
    EXPECT_TRUE(absl::IsInvalidArgument(cohort.Join(kRank0))) << batch;
  }
  setup.batch_sizes = {limits::kBatchSizeMax, limits::kBatchSizeMax};
  StartedCohort cohort(setup);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{0, 8}));
}

TEST(LimitsTest, PlansThatOverflowTheClockAreRefused) {
  const FakeSetup setup = SmallSetup();
  FakeCohort cohort(setup);
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  const auto refused = [&](const RunPlan& plan) {
    Effects out;
    return absl::IsInvalidArgument(cohort.core().BeginRegister(
        cohort.sender(kRank0), setup.layout, plan, cohort.now(), out));
  };
  EXPECT_FALSE(refused(setup.plan));
  for (int64_t samples : {kHuge, limits::kSplitSamplesMax + 1}) {
    RunPlan plan = setup.plan;
    plan.train_samples = samples;
    EXPECT_TRUE(refused(plan));
    plan = setup.plan;
    plan.test_samples = samples;
    EXPECT_TRUE(refused(plan));
  }
  for (double reference : {1.7e308, 1e-300, kNotANumber, kInfinity, -1.0}) {
    RunPlan plan = setup.plan;
    plan.loss_reference = reference;
    EXPECT_TRUE(refused(plan)) << reference;
  }
}

TEST(LimitsTest, InitialStatisticsMustBeFiniteAndTheirVarianceNotNegative) {
  const FakeSetup setup = SmallSetup();
  FakeCohort cohort(setup);
  // Rank 0's values are requested once both ranks have come.
  cohort.HoldValues();
  cohort.Start();
  const auto refused = [&](const LayerStatistics& layer,
                           const std::string& part) {
    Effects out;
    EXPECT_THAT(
        cohort.core().FinishRegister(cohort.sender(kRank0), setup.layout,
                                     setup.plan, {layer}, cohort.now(), out),
        IsError(kInvalidArgument, part));
  };
  refused({.mean = {kNotANumber}, .variance = {1}},
          "bn: got the mean nan and variance 1 in channel 0");
  refused({.mean = {1e40}, .variance = {1}}, "finite in float32");
  for (double variance : {kNotANumber, kInfinity, -1.0, 1e40}) {
    refused({.mean = {0}, .variance = {variance}}, "finite in float32");
  }
  refused({.mean = {0}, .variance = {1}, .num_batches_tracked = kHuge},
          "batches tracked");
  EXPECT_EQ(cohort.core().model(), nullptr);
}

// Partition of w's last element and b.
TEST(LimitsTest, InitialValuesMustBeFiniteAndAreNamed) {
  const FakeSetup setup = SmallSetup();
  const Partition partition{
      .slices = {{.parameter = 0, .offset = 1, .count = 1},
                 {.parameter = 1, .offset = 0, .count = 1}},
      .elements = 2};
  const auto check = [&](const std::vector<float>& values) {
    return CheckInitialValues(setup.layout, partition, values);
  };
  ExpectOk(check({1, 2}));
  EXPECT_THAT(
      check({static_cast<float>(kNotANumber), 2}),
      IsError(kInvalidArgument, "w: got the initial value nan at element 1"));
  EXPECT_THAT(
      check({1, static_cast<float>(kInfinity)}),
      IsError(kInvalidArgument, "b: got the initial value inf at element 0"));
}

TEST(LimitsTest, LossWeightsThatLeaveFloat32AsScaleAreRefused) {
  StartedCohort cohort(SmallSetup());
  for (double weight : {1e300, 1e-300, kNotANumber, kInfinity, -1.0}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(cohort.Open(kRank0, {.loss_weight = weight})))
        << weight;
  }
}

TEST(LimitsTest, LabelCountsThatCannotBeAreRefused) {
  StartedCohort cohort(SmallSetup());
  ASSERT_TRUE(cohort.Open(kRank0, {}).ok());
  const auto refused = [&](int64_t correct, int64_t labels) {
    return absl::IsInvalidArgument(cohort.Close(
        kRank0, PushClosing{.correct = correct,
                            .labels = labels,
                            .batch_norm_calls = {1},
                            .moments = {{.moments = {.count = 1,
                                                     .first = {0},
                                                     .second = {0}}}}}));
  };
  EXPECT_TRUE(refused(-1, 1));
  EXPECT_TRUE(refused(2, 1));
  EXPECT_TRUE(refused(0, -1));
  EXPECT_TRUE(refused(0, limits::kLabelsMax + 1));
  EXPECT_FALSE(refused(1, limits::kLabelsMax));
}

// Two counts of 2^62 sum up to a negative one.
TEST(LimitsTest, CountsOfMomentsWhoseSumOverflowsAreRefused) {
  const Moments huge{.count = int64_t{1} << 62, .first = {0}, .second = {0}};
  StartedCohort cohort(GlobalSetup());
  EXPECT_TRUE(absl::IsInvalidArgument(cohort.Reduce(kRank0, {}, huge)));
  EXPECT_TRUE(absl::IsInvalidArgument(cohort.Reduce(
      kRank0, {.place = {.phase = ReducePhase::kBackward}}, huge)));
  StartedCohort local(SmallSetup());
  const FakePush push{.moments = huge};
  ASSERT_TRUE(local.Open(kRank0, push).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(local.Close(kRank0, push)));
}

TEST(LimitsTest, CollectedCountsThatOverflowAreRefused) {
  FakeSetup setup = SmallSetup();
  setup.plan.test_samples = 0;
  setup.options.policy.statistics = {StatisticsKind::kAfter};
  StartedCohort cohort(setup);
  for (int step = 0; step < 2; ++step) cohort.PushBoth({});
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kCollectMoments);
  EXPECT_THAT(
      cohort.ReportMoments(
          kRank0, {{.moments = {.count = kHuge, .first = {0}, .second = {0}}}}),
      IsError(kInvalidArgument, ""));
}

TEST(LimitsTest, EvaluationsWithImpossibleSumsAreRefused) {
  StartedCohort cohort(SmallSetup());
  for (int step = 0; step < 2; ++step) cohort.PushBoth({});
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  const auto refused = [&](const EvaluationSums& sums) {
    Effects out;
    return absl::IsInvalidArgument(
        cohort.core()
            .ReportEvaluation(cohort.sender(kRank0),
                              cohort.told(kRank0).sequence, sums, cohort.now(),
                              out)
            .status());
  };
  EXPECT_TRUE(refused({.samples = -1}));
  EXPECT_TRUE(refused({.samples = kHuge}));
  EXPECT_TRUE(refused({.samples = 2, .correct = 3, .labels = 2}));
  EXPECT_TRUE(refused({.samples = 2, .loss_weight = kNotANumber}));
  EXPECT_TRUE(refused({.samples = 2, .loss_weight = -1}));
  EXPECT_TRUE(refused({.samples = 2, .loss_weight = 1e300}));
  EXPECT_FALSE(refused({.samples = 2, .loss_weight = 2}));
}

// Each fits by itself, their product does not.
TEST(LimitsTest, RatesThatGrowOverTheStepsOfAScheduleAreRefused) {
  CoordinatorOptions options;
  options.optimizer = {.learning_rate = 1,
                       .schedule = ScheduleKind::kStep,
                       .step_epochs = {1, 2, 3},
                       .step_gamma = 10};
  EXPECT_TRUE(Validate(options).ok());
  options.optimizer.step_epochs = {1, 2, 3, 4};
  EXPECT_THAT(Validate(options),
              IsError(kInvalidArgument,
                      "--step_gamma: got 10 (a learning rate of 10000"));
}

}  // namespace
}  // namespace cohort
