#include "server/ctl/study/estimate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cohort {
namespace {

TEST(StudentQuantileTest, IsThatOfPrintedTables) {
  // Two-sided 95 %, and one-sided 95 % and 99.5 %.
  EXPECT_NEAR(StudentQuantile(0.975, 1), 12.7062047362, 1e-8);
  EXPECT_NEAR(StudentQuantile(0.975, 2), 4.3026527297, 1e-9);
  EXPECT_NEAR(StudentQuantile(0.975, 3), 3.1824463053, 1e-9);
  EXPECT_NEAR(StudentQuantile(0.975, 4), 2.7764451052, 1e-9);
  EXPECT_NEAR(StudentQuantile(0.975, 10), 2.2281388520, 1e-9);
  EXPECT_NEAR(StudentQuantile(0.95, 5), 2.0150483733, 1e-9);
  EXPECT_NEAR(StudentQuantile(0.995, 30), 2.7499956536, 1e-9);
}

TEST(StudentQuantileTest, ApproachesTheNormalDistribution) {
  EXPECT_NEAR(StudentQuantile(0.975, 1e7), 1.9599639845, 1e-6);
}

TEST(StudentQuantileTest, IsSymmetric) {
  EXPECT_DOUBLE_EQ(StudentQuantile(0.1, 7), -StudentQuantile(0.9, 7));
}

TEST(EstimateTest, MeanAndIntervalOfThreeValues) {
  // Deviation 1, so that the error of the mean is 1/sqrt(3).
  const Estimate estimate = EstimateMean({90, 91, 92});
  EXPECT_EQ(estimate.n, 3);
  EXPECT_DOUBLE_EQ(estimate.mean, 91);
  ASSERT_TRUE(estimate.half_width.has_value());
  EXPECT_NEAR(*estimate.half_width, 4.3026527297 / std::sqrt(3), 1e-9);
  EXPECT_EQ(ToText(estimate, 1), "91.0 ± 2.5");
}

TEST(EstimateTest, OneValueHasNoInterval) {
  const Estimate estimate = EstimateMean({90.25});
  EXPECT_FALSE(estimate.half_width.has_value());
  EXPECT_EQ(ToText(estimate, 2), "90.25");
}

TEST(CompareTest, SharedSeedsArePaired) {
  // Seeds differ by ten points, the two policies by 1.0, 1.1 and 0.9.
  const Difference difference = Compare({{1, 71.0}, {2, 81.1}, {3, 90.9}},
                                        {{1, 70.0}, {2, 80.0}, {3, 90.0}});
  EXPECT_TRUE(difference.paired);
  EXPECT_NEAR(difference.estimate.mean, 1.0, 1e-9);
  EXPECT_NEAR(*difference.estimate.half_width,
              4.3026527297 * 0.1 / std::sqrt(3), 1e-9);
  EXPECT_FALSE(difference.WithinNoise());
}

TEST(CompareTest, OnlySeedsThatBothHaveCount) {
  const Difference difference =
      Compare({{1, 1.0}, {2, 2.0}, {9, 100.0}}, {{1, 0.0}, {2, 1.0}, {3, 7.0}});
  EXPECT_TRUE(difference.paired);
  EXPECT_DOUBLE_EQ(difference.estimate.mean, 1.0);
  EXPECT_EQ(difference.estimate.n, 2);
}

TEST(CompareTest, OtherSeedsGetWelchsInterval) {
  // Equal deviations: four degrees of freedom, error sqrt(1/3 + 1/3).
  const Difference difference =
      Compare({{1, 1.0}, {2, 2.0}, {3, 3.0}}, {{4, 4.0}, {5, 5.0}, {6, 6.0}});
  EXPECT_FALSE(difference.paired);
  EXPECT_DOUBLE_EQ(difference.estimate.mean, -3);
  EXPECT_NEAR(*difference.estimate.half_width,
              2.7764451052 * std::sqrt(2.0 / 3), 1e-8);
  EXPECT_FALSE(difference.WithinNoise());
}

TEST(CompareTest, OneSeedShowsNothing) {
  const Difference difference = Compare({{1, 90.0}}, {{1, 10.0}});
  EXPECT_DOUBLE_EQ(difference.estimate.mean, 80);
  EXPECT_FALSE(difference.estimate.half_width.has_value());
  EXPECT_TRUE(difference.WithinNoise());
}

TEST(CompareTest, EqualRunsAreWithinNoiseAndConstantDifferencesAreNot) {
  const SeedValues values = {{1, 50.0}, {2, 60.0}};
  EXPECT_TRUE(Compare(values, values).WithinNoise());
  EXPECT_FALSE(Compare({{1, 51.0}, {2, 61.0}}, values).WithinNoise());
}

}  // namespace
}  // namespace cohort
