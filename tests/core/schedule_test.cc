#include "server/core/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace cohort {
namespace {

// Ten epochs of 100 samples.
double RateAt(const OptimizerOptions& options, int64_t seen) {
  return LearningRate(options, {.seen = seen, .epoch = 100, .total = 1000});
}

struct Point {
  int64_t seen = 0;
  double rate = 0;
};

void ExpectRates(const OptimizerOptions& options,
                 const std::vector<Point>& points) {
  for (const Point& point : points) {
    EXPECT_NEAR(RateAt(options, point.seen), point.rate, 1e-15)
        << "after " << point.seen << " samples";
  }
}

TEST(ScheduleTest, ConstantIsTheBaseRate) {
  ExpectRates({.learning_rate = 0.2, .schedule = ScheduleKind::kConstant},
              {{0, 0.2}, {500, 0.2}, {1000, 0.2}, {2000, 0.2}});
}

TEST(ScheduleTest, CosineGoesFromTheBaseRateToZero) {
  ExpectRates(
      {.learning_rate = 0.2, .schedule = ScheduleKind::kCosine},
      // cos(pi/4) = sqrt(1/2).
      {{0, 0.2}, {250, 0.1 + 0.1 * std::sqrt(0.5)}, {500, 0.1}, {1000, 0}});
}

TEST(ScheduleTest, CosineStaysAtItsEnd) {
  ExpectRates({.learning_rate = 0.2, .schedule = ScheduleKind::kCosine},
              {{1700, 0}});
  ExpectRates({.learning_rate = 0.2,
               .schedule = ScheduleKind::kCosine,
               .final_learning_rate = 0.05},
              {{0, 0.2}, {500, 0.125}, {1000, 0.05}, {1700, 0.05}});
}

TEST(ScheduleTest, StepFallsAtEachMilestone) {
  ExpectRates(
      {.learning_rate = 0.4,
       .schedule = ScheduleKind::kStep,
       .step_epochs = {3, 6.5},
       .step_gamma = 0.5},
      {{0, 0.4}, {299, 0.4}, {300, 0.2}, {649, 0.2}, {650, 0.1}, {1000, 0.1}});
}

TEST(ScheduleTest, PolynomialFollowsItsPower) {
  ExpectRates({.learning_rate = 0.4, .schedule = ScheduleKind::kPolynomial},
              {{0, 0.4}, {250, 0.3}, {1000, 0}, {1200, 0}});
  ExpectRates({.learning_rate = 0.5,
               .schedule = ScheduleKind::kPolynomial,
               .poly_power = 2,
               .final_learning_rate = 0.1},
              {{0, 0.5}, {500, 0.2}, {1000, 0.1}});
}

// The "poly" rate of segmentation: base * (1 - step / steps)^0.9, here 50
// steps of 20 samples each.
TEST(ScheduleTest, PolynomialOfPower09IsThePolyRate) {
  const OptimizerOptions options{.learning_rate = 0.05,
                                 .schedule = ScheduleKind::kPolynomial,
                                 .poly_power = 0.9};
  for (int64_t step = 0; step < 50; ++step) {
    const double wanted =
        0.05 * std::pow(1 - static_cast<double>(step) / 50, 0.9);
    ExpectRates(options, {{step * 20, wanted}});
  }
  // 0.5^0.9; and neither negative nor NaN if more samples are seen than
  // planned.
  ExpectRates(options, {{500, 0.05 * 0.5358867312681466}, {1001, 0}});
}

TEST(ScheduleTest, WarmUpRisesFromZeroAndTheRestTakesTheRest) {
  OptimizerOptions options{.learning_rate = 0.4, .warmup_epochs = 2};
  options.schedule = ScheduleKind::kConstant;
  ExpectRates(options, {{0, 0}, {50, 0.1}, {100, 0.2}, {200, 0.4}, {900, 0.4}});
  options.schedule = ScheduleKind::kCosine;
  // Half of the 800 samples after the warm-up.
  ExpectRates(options, {{150, 0.3}, {200, 0.4}, {600, 0.2}, {1000, 0}});
  options.schedule = ScheduleKind::kPolynomial;
  ExpectRates(options, {{100, 0.2}, {200, 0.4}, {600, 0.2}, {1000, 0}});
  // Milestones count from the start.
  options.schedule = ScheduleKind::kStep;
  options.step_epochs = {3};
  options.step_gamma = 0.5;
  ExpectRates(options, {{100, 0.2}, {299, 0.4}, {300, 0.2}});
}

TEST(ScheduleTest, AWarmUpOfTheWholeRunEndsAtTheEnd) {
  const OptimizerOptions options{.learning_rate = 0.4,
                                 .schedule = ScheduleKind::kCosine,
                                 .warmup_epochs = 10};
  ExpectRates(options, {{500, 0.2}, {999, 0.3996}, {1000, 0}});
}

TEST(ScheduleTest, BeforeTheModelIsKnownItIsTheBaseRate) {
  EXPECT_EQ(LearningRate({.learning_rate = 0.4, .warmup_epochs = 2}, {}), 0.4);
}

}  // namespace
}  // namespace cohort
