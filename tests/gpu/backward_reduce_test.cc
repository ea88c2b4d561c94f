#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/layer.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/shapes.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {
namespace {

enum class Kind { kPlain, kRecomputed, kFromY };

template <typename T>
typename Layer<T>::Sums SumsOf(Machine& machine, const Layer<T>& layer,
                               Kind kind, const std::vector<T>& y,
                               bool stores_dz) {
  return layer.Reduce(machine, kind != Kind::kPlain,
                      kind == Kind::kFromY ? &y : nullptr, stores_dz);
}

// The sums in long double over the elements that the mask of the machine's own
// y keeps. Tolerance: a batch of at most 64 elements errs by 2^-24 of at most
// 64 terms, each no more than 4; batches are summed in float64.
template <typename T>
void ExpectSums(const Layer<T>& layer, const typename Layer<T>::Sums& got,
                bool masked, const std::vector<T>& y) {
  const BatchShape& shape = layer.shape;
  std::vector<long double> sum(shape.channels), product(shape.channels);
  for (int64_t i = 0; i < Elements(shape); ++i) {
    const int64_t c = ChannelOf(shape, i);
    if (masked && !(static_cast<double>(y[i]) > 0)) continue;
    const long double dz = static_cast<double>(layer.dy[i]);
    sum[c] += dz;
    product[c] += dz * (static_cast<double>(layer.x[i]) - layer.mean[c]);
  }
  const double n = static_cast<double>(shape.count());
  const double tolerance = 64 * 0x1p-24 * 4 * (std::sqrt(n) + 4);
  for (int64_t c = 0; c < shape.channels; ++c) {
    ASSERT_NEAR(got.dy[c], static_cast<double>(sum[c]), tolerance) << c;
    ASSERT_NEAR(got.dy_xmu[c], static_cast<double>(product[c]), tolerance) << c;
  }
}

class BackwardReduceTest : public LayerTest {};

TEST_P(BackwardReduceTest, SumsAreThoseOfTheMaskedGradient) {
  ForEachLayer([&]<typename T>(const Layer<T>& layer) {
    // With an addend, the sign of y does not follow from x.
    const std::vector<T> plain = layer.Forward(machine(), true, false);
    const std::vector<T> added = layer.Forward(machine(), true, true);
    ExpectSums(layer, SumsOf(machine(), layer, Kind::kPlain, plain, false),
               false, plain);
    ExpectSums(layer, SumsOf(machine(), layer, Kind::kRecomputed, plain, false),
               true, plain);
    ExpectSums(layer, SumsOf(machine(), layer, Kind::kFromY, added, false),
               true, added);
  });
}

TEST_P(BackwardReduceTest, StoredGradientIsWhereTheOutputIsPositive) {
  ForEachLayer([&]<typename T>(const Layer<T>& layer) {
    for (bool add : {false, true}) {
      const std::vector<T> y = layer.Forward(machine(), true, add);
      const Kind kind = add ? Kind::kFromY : Kind::kRecomputed;
      const auto got = SumsOf(machine(), layer, kind, y, true);
      int64_t wrong = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const bool passes = static_cast<double>(y[i]) > 0;
        if (!(got.dz[i] == (passes ? layer.dy[i] : T(0.0)))) ++wrong;
      }
      EXPECT_EQ(wrong, 0);
      const auto without = SumsOf(machine(), layer, kind, y, false);
      EXPECT_EQ(got.dy, without.dy);
      EXPECT_EQ(got.dy_xmu, without.dy_xmu);
    }
  });
}

TEST_P(BackwardReduceTest, RepeatsBitForBit) {
  ForEachLayer([&]<typename T>(const Layer<T>& layer) {
    const std::vector<T> y = layer.Forward(machine(), true, true);
    for (Kind kind : {Kind::kPlain, Kind::kRecomputed, Kind::kFromY}) {
      EXPECT_TRUE(SumsOf(machine(), layer, kind, y, true) ==
                  SumsOf(machine(), layer, kind, y, true));
    }
  });
}

// Around a mean of 1e4, which float32 holds to 5e-4. The rest of the mean must
// not be lost, although it is multiplied by the sum of all gradients.
TEST_P(BackwardReduceTest, MeanIsNotRoundedToFloat32) {
  for (int64_t inner : {1, 49, 600}) {
    Layer<float> layer({{.outer = 16, .channels = 3, .inner = inner}});
    layer.x.assign(layer.x.size(), 1e4F);
    layer.dy.assign(layer.dy.size(), 1.0F);
    layer.mean.assign(3, 1e4 + 0x1p-13);
    const auto got = layer.Reduce(machine(), false, nullptr, false);
    const double n = static_cast<double>(layer.shape.count());
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_EQ(got.dy[c], n);
      EXPECT_DOUBLE_EQ(got.dy_xmu[c], -n * 0x1p-13);
    }
  }
}

TEST_P(BackwardReduceTest, NonfiniteElementSpoilsItsChannelOnly) {
  for (int64_t inner : {1, 49, 600}) {
    Layer<float> layer({{.outer = 19, .channels = 5, .inner = inner}, 1});
    const auto bad = static_cast<int64_t>(layer.dy.size()) / 2;
    layer.dy[bad] = std::numeric_limits<float>::quiet_NaN();
    const auto got = layer.Reduce(machine(), false, nullptr, false);
    for (int64_t c = 0; c < 5; ++c) {
      const bool spoilt = c == ChannelOf(layer.shape, bad);
      EXPECT_EQ(std::isnan(got.dy[c]), spoilt);
      EXPECT_EQ(std::isnan(got.dy_xmu[c]), spoilt);
    }
  }
}

// Activations near the smallest number of the type: some become 0 when they are
// stored, and then pass no gradient.
TEST_P(BackwardReduceTest, MaskIsThatOfTheStoredOutput) {
  ForEachTensorType([&]<typename T>(std::type_identity<T>) {
    const double smallest =
        std::is_same_v<T, Float16>
            ? 0x1p-24
            : (std::is_same_v<T, float> ? 0x1p-149 : 0x1p-133);
    for (int64_t inner : {1, 100, 600}) {
      Layer<T> layer({{.outer = 10, .channels = 2, .inner = inner}});
      layer.mean.assign(2, 0);
      layer.invstd.assign(2, smallest);
      layer.gamma.assign(2, 1);
      layer.beta.assign(2, 0);
      const std::vector<T> y = layer.Forward(machine(), true, false);
      const auto got = layer.Reduce(machine(), true, nullptr, true);
      int64_t rounded_away = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const bool positive = static_cast<double>(y[i]) > 0;
        ASSERT_TRUE(got.dz[i] == (positive ? layer.dy[i] : T(0.0))) << i;
        if (!positive && static_cast<double>(layer.x[i]) > 0) ++rounded_away;
      }
      EXPECT_GT(rounded_away, 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Machines, BackwardReduceTest,
                         testing::ValuesIn(AllMachines()), MachineCaseName);

}  // namespace
}  // namespace cohort::kernels::cuda
