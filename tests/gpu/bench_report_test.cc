#include "tests/gpu/bench_report.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::kernels::cuda {
namespace {

using testing::StartsWith;

// A copy moves 100 bytes a second; the goal is 90 bytes in a second.
Report ReportOf(double seconds) {
  return {.copy_bandwidth = 100,
          .measurements = {{.floor_bytes = 90, .seconds = seconds}}};
}

TEST(BenchReportTest, GoalIsNineTenthsOfTheCopy) {
  EXPECT_DOUBLE_EQ(ReportOf(1).ShareOf(ReportOf(1).measurements[0]), 0.9);
  EXPECT_TRUE(ReportOf(0.999).Passes());
  EXPECT_FALSE(ReportOf(1.001).Passes());
  EXPECT_THAT(Verdict(ReportOf(0.999)), StartsWith("PASS: all 1 goals"));
  EXPECT_THAT(Verdict(ReportOf(1.001)), StartsWith("FAIL: 1 of 1 goals"));
}

TEST(BenchReportTest, NanFails) {
  EXPECT_FALSE(ReportOf(std::numeric_limits<double>::quiet_NaN()).Passes());
}

TEST(BenchReportTest, MeasurementsWithoutGoalAreNotJudged) {
  Report report = ReportOf(0.5);
  report.measurements.push_back(
      {.floor_bytes = 1, .seconds = 1, .has_goal = false});
  EXPECT_TRUE(report.Passes());
  EXPECT_EQ(report.goals(), 1);
}

TEST(BenchReportTest, NothingJudgedIsNoPass) {
  EXPECT_FALSE(Report{}.Passes());
  EXPECT_THAT(Verdict({}), StartsWith("FAIL: nothing"));
}

}  // namespace
}  // namespace cohort::kernels::cuda
