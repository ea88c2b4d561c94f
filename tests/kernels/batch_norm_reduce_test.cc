#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

using testing::Each;

// Filled with something that a kernel must overwrite.
Pairs Unwritten(int64_t channels) {
  return {std::vector<double>(channels, 7), std::vector<double>(channels, 7)};
}

template <typename T>
Pairs MomentsOf(const Backend& backend, const BatchShape& shape,
                const std::vector<T>& x) {
  Pairs out = Unwritten(shape.channels);
  backend.Moments({.shape = shape,
                   .type = TypeOf<T>(),
                   .x = x.data(),
                   .mean = out.first.data(),
                   .m2 = out.second.data()});
  return out;
}

template <typename T>
Pairs BackwardSumsOf(const Backend& backend, const BatchShape& shape,
                     const std::vector<T>& x, const std::vector<T>& dy,
                     const std::vector<double>& mean) {
  Pairs out = Unwritten(shape.channels);
  backend.BackwardReduce({.shape = shape,
                          .type = TypeOf<T>(),
                          .x = x.data(),
                          .dy = dy.data(),
                          .mean = mean.data(),
                          .sum_dy = out.first.data(),
                          .sum_dy_xmu = out.second.data()});
  return out;
}

// Largest absolute difference.
double Distance(const std::vector<double>& a,
                const std::vector<long double>& b) {
  double distance = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i] - b[i]));
    // Keeps a NaN, which std::max would not.
    if (!(d <= distance)) distance = d;
  }
  return distance;
}

class MomentsTest : public BackendTest {};
class BackwardReduceTest : public BackendTest {};

// Tolerance: n additions in float64 of terms of at most 2 (4 once squared),
// each rounded by 2^-53 of a sum of at most 4n: below n * 4n * 2^-53 in all.
// The mean is that of the sums of x - shift, divided by n.
template <typename T>
void ExpectExactMoments(const Backend& backend, const BatchShape& shape) {
  SCOPED_TRACE(absl::StrCat(Describe(shape), " of ", sizeof(T), " bytes"));
  const std::vector<T> x = Numbers(5).Take<T>(Elements(shape), 3);
  const auto [mean, m2] = TwoPassMoments(shape, x);
  const long double n = shape.count();
  const Pairs got = MomentsOf(backend, shape, x);
  EXPECT_LE(Distance(got.first, mean), n * 4 * 0x1p-53);
  EXPECT_LE(Distance(got.second, m2), n * n * 4 * 0x1p-53);
}

TEST_P(MomentsTest, EqualTheTwoPassFormulaInEveryLayout) {
  for (const BatchShape& shape : InterestingShapes()) {
    ForEachType([&]<typename T>(std::type_identity<T>) {
      ExpectExactMoments<T>(backend(), shape);
    });
  }
}

TEST_P(MomentsTest, RepeatBitForBit) {
  for (const BatchShape& shape : InterestingShapes()) {
    const std::vector<float> x = Numbers(6).Take<float>(Elements(shape));
    EXPECT_TRUE(MomentsOf(backend(), shape, x) ==
                MomentsOf(backend(), shape, x))
        << Describe(shape);
  }
}

// Half the elements are 9999 and half 10001: mean 1e4, variance 1. Sums of
// squares in float32 would give variance 0.
TEST_P(MomentsTest, KeepTheVarianceFarFromZero) {
  for (int64_t inner : {1, 49, 1000}) {
    const BatchShape shape = {.outer = 100, .channels = 3, .inner = inner};
    std::vector<float> x(Elements(shape));
    for (int64_t i = 0; i < Elements(shape); ++i) {
      const int64_t image = i / (shape.channels * shape.inner);
      x[i] = image % 2 == 0 ? 9999 : 10001;
    }
    const Pairs got = MomentsOf(backend(), shape, x);
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_DOUBLE_EQ(got.first[c], 1e4);
      EXPECT_NEAR(got.second[c] / shape.count(), 1, 1e-12);
    }
  }
}

// A uniform distribution of amplitude sqrt(3) has deviation 1; that of the
// sample is computed here, from the rounded elements.
TEST_P(MomentsTest, KeepTheVarianceOfNoiseFarFromZero) {
  const BatchShape shape = {.outer = 50000, .channels = 2, .inner = 1};
  const std::vector<float> x =
      Numbers(8).Take<float>(Elements(shape), 1e4, std::sqrt(3.0));
  const Pairs got = MomentsOf(backend(), shape, x);
  for (int64_t c = 0; c < 2; ++c) {
    long double sum = 0, squares = 0;
    for (int64_t i = c; i < Elements(shape); i += 2) {
      const long double d = x[i] - 1e4L;
      sum += d;
      squares += d * d;
    }
    const double variance = (squares - sum * sum / 50000) / 50000;
    EXPECT_NEAR(variance, 1, 0.02);
    EXPECT_NEAR(got.second[c] / 50000, variance, 1e-10);
  }
}

TEST_P(MomentsTest, ConstantChannelHasNoVarianceAtAll) {
  for (const BatchShape& shape : InterestingShapes()) {
    const std::vector<float> x(Elements(shape), 0.1f);
    const Pairs got = MomentsOf(backend(), shape, x);
    EXPECT_THAT(got.first, Each(static_cast<double>(0.1f))) << Describe(shape);
    EXPECT_THAT(got.second, Each(0.0)) << Describe(shape);
  }
}

TEST_P(MomentsTest, EmptyBatchGivesZeros) {
  for (const BatchShape& shape :
       {BatchShape{.outer = 0, .channels = 5, .inner = 49},
        BatchShape{.outer = 4, .channels = 5, .inner = 0}}) {
    const Pairs got = MomentsOf<float>(backend(), shape, {});
    EXPECT_THAT(got.first, Each(0.0));
    EXPECT_THAT(got.second, Each(0.0));
  }
}

// The rule of the rendezvous: NaN in that channel, and in no other.
TEST_P(MomentsTest, NonfiniteElementSpoilsItsChannelOnly) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t inner : {1, 7, 200}) {
    const BatchShape shape = {.outer = 37, .channels = 5, .inner = inner};
    for (int64_t bad : {int64_t{0}, Elements(shape) / 2, Elements(shape) - 1}) {
      std::vector<float> x = Numbers(9).Take<float>(Elements(shape));
      x[bad] = kInfinity;
      const Pairs got = MomentsOf(backend(), shape, x);
      for (int64_t c = 0; c < 5; ++c) {
        const bool spoilt = c == ChannelOf(shape, bad);
        EXPECT_EQ(std::isfinite(got.first[c]), !spoilt) << Describe(shape);
        EXPECT_EQ(std::isfinite(got.second[c]), !spoilt) << Describe(shape);
      }
    }
  }
}

// Tolerance as for the moments: terms are at most 1, and 2 once multiplied.
template <typename T>
void ExpectExactBackwardSums(const Backend& backend, const BatchShape& shape) {
  SCOPED_TRACE(absl::StrCat(Describe(shape), " of ", sizeof(T), " bytes"));
  Numbers numbers(10);
  const std::vector<T> x = numbers.Take<T>(Elements(shape), 3);
  const std::vector<T> dy = numbers.Take<T>(Elements(shape));
  // A global mean: not that of the local batch.
  const std::vector<double> mean = numbers.Take<double>(shape.channels, 3);
  std::vector<long double> sum(shape.channels), product(shape.channels);
  for (int64_t i = 0; i < Elements(shape); ++i) {
    const int64_t c = ChannelOf(shape, i);
    const long double g = static_cast<double>(dy[i]);
    sum[c] += g;
    product[c] += g * (static_cast<double>(x[i]) - mean[c]);
  }
  const double n = shape.count();
  const Pairs got = BackwardSumsOf(backend, shape, x, dy, mean);
  EXPECT_LE(Distance(got.first, sum), n * n * 0x1p-53);
  EXPECT_LE(Distance(got.second, product), n * n * 4 * 0x1p-53);
  EXPECT_TRUE(got == BackwardSumsOf(backend, shape, x, dy, mean));
}

TEST_P(BackwardReduceTest, EqualsTheFormulaInEveryLayout) {
  for (const BatchShape& shape : InterestingShapes()) {
    ForEachType([&]<typename T>(std::type_identity<T>) {
      ExpectExactBackwardSums<T>(backend(), shape);
    });
  }
}

TEST_P(BackwardReduceTest, EmptyBatchGivesZeros) {
  const BatchShape shape = {.outer = 0, .channels = 3, .inner = 4};
  const Pairs got = BackwardSumsOf<float>(backend(), shape, {}, {}, {1, 2, 3});
  EXPECT_THAT(got.first, Each(0.0));
  EXPECT_THAT(got.second, Each(0.0));
}

INSTANTIATE_TEST_SUITE_P(Backends, MomentsTest,
                         testing::ValuesIn(AllBackends()), BackendCaseName);
INSTANTIATE_TEST_SUITE_P(Backends, BackwardReduceTest,
                         testing::ValuesIn(AllBackends()), BackendCaseName);

}  // namespace
}  // namespace cohort::kernels
