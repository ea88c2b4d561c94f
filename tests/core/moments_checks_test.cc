#include "server/core/statistics/moments_checks.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

namespace cohort {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kFloatMax = std::numeric_limits<float>::max();

Moments One(int64_t count, double first, double second) {
  return {.count = count, .first = {first}, .second = {second}};
}

TEST(MomentsChecksTest, MeanAndVarianceMustBeFiniteInFloat32) {
  const auto usable = [](const Moments& moments) {
    return IsUsable(ReducePhase::kForward, moments);
  };
  EXPECT_TRUE(usable(One(1, kFloatMax, kFloatMax)));
  EXPECT_TRUE(usable(One(1, -kFloatMax, 0)));
  // The variance is M2 / count.
  EXPECT_TRUE(usable(One(4, 0, 4 * kFloatMax)));
  EXPECT_FALSE(usable(One(4, 0, 5 * kFloatMax)));
  EXPECT_FALSE(usable(One(1, 1e40, 0)));
  EXPECT_FALSE(usable(One(1 << 30, 0, 1.7e308)));
  EXPECT_FALSE(usable(One(1, kInf, 0)));
  EXPECT_FALSE(usable(One(1, 0, kNan)));
  // An empty batch.
  EXPECT_TRUE(usable(One(0, 0, 0)));
}

TEST(MomentsChecksTest, SumsOfTheBackwardPassMustBeFinite) {
  const auto usable = [](const Moments& moments) {
    return IsUsable(ReducePhase::kBackward, moments);
  };
  EXPECT_TRUE(usable(One(1, 1e300, -1e300)));
  EXPECT_FALSE(usable(One(1, 0, kInf)));
  EXPECT_FALSE(usable(One(1, kNan, 0)));
}

TEST(MomentsChecksTest, TheFirstLayerThatOverflowsIsNamed) {
  EXPECT_EQ(FirstOverflow({{.mean = {0}, .variance = {kFloatMax}},
                           {.mean = {-kFloatMax}, .variance = {1}}}),
            std::nullopt);
  EXPECT_EQ(FirstOverflow({{.mean = {0, 0}, .variance = {1, 1}},
                           {.mean = {0, 0}, .variance = {1, 1e39}},
                           {.mean = {0, kNan}, .variance = {1, 1}}}),
            1);
}

}  // namespace
}  // namespace cohort
