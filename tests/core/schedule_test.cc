#include "server/core/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cohort {
namespace {

constexpr OptimizerOptions kCosine{.learning_rate = 0.2,
                                   .schedule = ScheduleKind::kCosine};

TEST(ScheduleTest, ConstantIsTheBaseRate) {
  const OptimizerOptions options{.learning_rate = 0.2,
                                 .schedule = ScheduleKind::kConstant};
  EXPECT_EQ(LearningRate(options, 0, 100), 0.2);
  EXPECT_EQ(LearningRate(options, 100, 100), 0.2);
}

TEST(ScheduleTest, CosineGoesFromTheBaseRateToZero) {
  EXPECT_DOUBLE_EQ(LearningRate(kCosine, 0, 100), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(kCosine, 50, 100), 0.1);
  // cos(pi/3) = 1/2.
  EXPECT_NEAR(LearningRate(kCosine, 100, 300), 0.15, 1e-15);
  EXPECT_NEAR(LearningRate(kCosine, 100, 100), 0, 1e-16);
}

TEST(ScheduleTest, CosineStaysAtZeroBeyondTheEnd) {
  EXPECT_NEAR(LearningRate(kCosine, 170, 100), 0, 1e-16);
}

}  // namespace
}  // namespace cohort
