#include "kernels/moments_fold.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/moments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kChannels = 65;

Moments MomentsOfRows(const double* x, int64_t rows) {
  Moments moments = {rows, std::vector<double>(kChannels),
                     std::vector<double>(kChannels)};
  CpuBackend().Moments(
      {.shape = {.outer = rows, .channels = kChannels, .inner = 1},
       .type = DataType::kFloat64,
       .x = x,
       .mean = moments.first.data(),
       .m2 = moments.second.data()});
  return moments;
}

std::vector<const Moments*> PointersTo(const std::vector<Moments>& parts) {
  std::vector<const Moments*> pointers;
  for (const Moments& part : parts) pointers.push_back(&part);
  return pointers;
}

std::vector<Moments> CutIntoRows(const std::vector<double>& x,
                                 const std::vector<int64_t>& rows) {
  std::vector<Moments> parts;
  int64_t begin = 0;
  for (int64_t n : rows) {
    parts.push_back(MomentsOfRows(x.data() + begin * kChannels, n));
    begin += n;
  }
  return parts;
}

void ExpectEqualTo(const Moments& want, const Moments& got) {
  ASSERT_EQ(got.count, want.count);
  for (int64_t c = 0; c < kChannels; ++c) {
    EXPECT_NEAR(got.first[c], want.first[c],
                1e-12 * std::max(1.0, std::abs(want.first[c])));
    EXPECT_NEAR(got.second[c], want.second[c], 1e-12 * want.second[c]);
  }
}

// {1, 3} and {5, 7, 9}: means 2 and 7, M2 2 and 8; all five: mean 5, and
// 16 + 4 + 0 + 4 + 16 = 40.
TEST(MomentsFoldTest, ForwardCombinesTwoParts) {
  const Moments a = {2, {2}, {2}};
  const Moments b = {3, {7}, {8}};
  const Moments all = FoldForward({&a, &b});
  EXPECT_EQ(all.count, 5);
  EXPECT_THAT(all.first, ElementsAre(testing::DoubleEq(5)));
  EXPECT_THAT(all.second, ElementsAre(testing::DoubleEq(40)));
}

TEST(MomentsFoldTest, ForwardOverUnevenShardsEqualsTheWholeBatch) {
  const std::vector<double> x = Numbers(20).Take<double>(55 * kChannels, 3);
  ExpectEqualTo(MomentsOfRows(x.data(), 55),
                FoldForward(PointersTo(CutIntoRows(x, {5, 0, 17, 33}))));
}

// Nearly all the variance lies between the workers.
TEST(MomentsFoldTest, ForwardKeepsTheVarianceBetweenWorkers) {
  std::vector<double> x = Numbers(21).Take<double>(40 * kChannels);
  for (size_t i = 0; i < x.size(); ++i) x[i] += i < x.size() / 2 ? 1e3 : -1e3;
  const Moments all = FoldForward(PointersTo(CutIntoRows(x, {20, 20})));
  ExpectEqualTo(MomentsOfRows(x.data(), 40), all);
  EXPECT_NEAR(all.second[0] / 40, 1e6, 1e3);
}

TEST(MomentsFoldTest, ForwardSkipsEmptyPartsWhateverTheyHold) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Moments empty = {0, {kNan}, {kNan}};
  const Moments part = {2, {2}, {2}};
  const Moments all = FoldForward({&empty, &part, &empty});
  EXPECT_EQ(all.count, 2);
  EXPECT_THAT(all.first, ElementsAre(2));
  EXPECT_THAT(all.second, ElementsAre(2));
}

TEST(MomentsFoldTest, ForwardOfEmptyPartsIsZeros) {
  const Moments empty = {0, {7, 7}, {7, 7}};
  const Moments all = FoldForward({&empty, &empty});
  EXPECT_EQ(all.count, 0);
  EXPECT_THAT(all.first, ElementsAre(0, 0));
  EXPECT_THAT(all.second, ElementsAre(0, 0));
}

TEST(MomentsFoldTest, NoPartsGiveNothing) {
  EXPECT_EQ(FoldForward({}).count, 0);
  EXPECT_THAT(FoldForward({}).first, IsEmpty());
}

// Products of such counts exceed int64.
TEST(MomentsFoldTest, ForwardTakesHugeCounts) {
  const int64_t count = int64_t{1} << 40;
  const Moments a = {count, {-1}, {0}};
  const Moments b = {count, {1}, {0}};
  const Moments all = FoldForward({&a, &b});
  EXPECT_EQ(all.count, 2 * count);
  EXPECT_THAT(all.first, ElementsAre(0));
  EXPECT_THAT(all.second, ElementsAre(std::ldexp(1, 41)));
}

TEST(MomentsFoldTest, NanStaysInItsChannel) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Moments a = {1, {kNan, 1}, {0, 0}};
  const Moments b = {1, {1, 3}, {0, 0}};
  const Moments all = FoldForward({&a, &b});
  EXPECT_TRUE(std::isnan(all.first[0]));
  EXPECT_TRUE(std::isnan(all.second[0]));
  EXPECT_EQ(all.first[1], 2);
  EXPECT_EQ(all.second[1], 2);
}

// 2^60 + 1 is not a float64, so only this order keeps the 1.
TEST(MomentsFoldTest, BackwardSumsInTheOrderGiven) {
  const Moments a = {2, {0x1p60, 1}, {1, 2}};
  const Moments b = {0, {-0x1p60, 0}, {10, 20}};
  const Moments c = {3, {1, 4}, {100, 200}};
  Moments all = {0, {0, 0}, {0, 0}};
  for (const Moments* part : {&a, &b, &c}) AddBackward(*part, all);
  EXPECT_EQ(all.count, 5);
  EXPECT_THAT(all.first, ElementsAre(1, 5));
  EXPECT_THAT(all.second, ElementsAre(111, 222));
}

TEST(MomentsFoldDeathTest, UnequalChannelsAreABug) {
  const Moments a = {1, {1}, {1}};
  const Moments b = {1, {1, 1}, {1, 1}};
  EXPECT_DEATH(FoldForward({&a, &b}), "moments of 2 and 2 channels, want 1");
}

}  // namespace
}  // namespace cohort::kernels
