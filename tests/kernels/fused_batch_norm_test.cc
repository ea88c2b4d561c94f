#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/data_type.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

// Every layout and rows that fill vectors or do not; smaller than
// InterestingShapes(), as there are more variants.
std::vector<BatchShape> FusedShapes() {
  std::vector<BatchShape> shapes = {{.outer = 1, .channels = 1, .inner = 1},
                                    {.outer = 1, .channels = 65, .inner = 1},
                                    {.outer = 2, .channels = 3, .inner = 300}};
  for (int64_t channels : {1, 3, 64, 65, 100, 2049}) {
    for (int64_t inner : {1, 7, 65}) {
      shapes.push_back(
          {.outer = inner == 1 ? 37 : 3, .channels = channels, .inner = inner});
    }
  }
  return shapes;
}

template <typename T>
long double Exact(T value) {
  return static_cast<double>(value);
}

// A layer in the middle of a step, with activations of both signs.
template <typename T, typename P = float>
struct FusedLayer {
  explicit FusedLayer(const BatchShape& the_shape) : shape(the_shape) {
    Numbers numbers(21);
    x = numbers.Take<T>(Elements(shape), 1);
    z = numbers.Take<T>(Elements(shape));
    dy = numbers.Take<T>(Elements(shape));
    mean = numbers.Take<double>(shape.channels, 1);
    invstd = numbers.Take<double>(shape.channels, 2);
    gamma = numbers.Take<P>(shape.channels, 1);
    beta = numbers.Take<P>(shape.channels);
    sum_dy = numbers.Take<double>(shape.channels, 0, 10);
    sum_dy_xmu = numbers.Take<double>(shape.channels, 0, 10);
  }

  std::vector<T> Forward(const Backend& backend, bool relu, bool add) const {
    std::vector<T> y(Elements(shape));
    backend.Normalize(ForwardArgs(relu, add, y));
    return y;
  }

  NormalizeArgs ForwardArgs(bool relu, bool add, std::vector<T>& y) const {
    return {.shape = shape,
            .type = TypeOf<T>(),
            .x = x.data(),
            .mean = mean.data(),
            .invstd = invstd.data(),
            .parameter_type = TypeOf<P>(),
            .gamma = gamma.data(),
            .beta = beta.data(),
            .add = add ? z.data() : nullptr,
            .relu = relu,
            .y = y.data()};
  }

  // `y` null: the mask is recomputed.
  BackwardReduceArgs ReduceArgs(const T* y, std::vector<double>& sum,
                                std::vector<double>& product, T* dz) const {
    return {.shape = shape,
            .type = TypeOf<T>(),
            .x = x.data(),
            .dy = dy.data(),
            .mean = mean.data(),
            .sum_dy = sum.data(),
            .sum_dy_xmu = product.data(),
            .relu = true,
            .y = y,
            .invstd = invstd.data(),
            .parameter_type = TypeOf<P>(),
            .gamma = gamma.data(),
            .beta = beta.data(),
            .dz = dz};
  }

  BackwardElementwiseArgs BackwardArgs(bool relu, bool frozen,
                                       std::vector<T>& dx) const {
    return {.shape = shape,
            .type = TypeOf<T>(),
            .x = x.data(),
            .dy = dy.data(),
            .mean = mean.data(),
            .invstd = invstd.data(),
            .parameter_type = TypeOf<P>(),
            .gamma = gamma.data(),
            .sum_dy = frozen ? nullptr : sum_dy.data(),
            .sum_dy_xmu = frozen ? nullptr : sum_dy_xmu.data(),
            .total_count = frozen ? 0 : 3 * shape.count(),
            .relu = relu,
            .beta = relu ? beta.data() : nullptr,
            .dx = dx.data()};
  }

  BatchShape shape;
  std::vector<T> x, z, dy;
  std::vector<double> mean, invstd;
  std::vector<P> gamma, beta;
  std::vector<double> sum_dy, sum_dy_xmu;
};

template <typename F>
void ForEachCase(F f) {
  for (const BatchShape& shape : FusedShapes()) {
    ForEachType([&]<typename T>(std::type_identity<T>) {
      SCOPED_TRACE(absl::StrCat(Describe(shape), ", type ",
                                static_cast<int>(TypeOf<T>())));
      f(FusedLayer<T>(shape));
    });
  }
}

class FusedBatchNormTest : public BackendTest {};

template <typename T, typename P>
void ExpectForward(const Backend& backend, const FusedLayer<T, P>& layer,
                   bool relu, bool add) {
  const std::vector<T> y = layer.Forward(backend, relu, add);
  int64_t wrong = 0;
  for (int64_t i = 0; i < Elements(layer.shape); ++i) {
    const int64_t c = ChannelOf(layer.shape, i);
    const long double product = (Exact(layer.x[i]) - layer.mean[c]) *
                                layer.invstd[c] * Exact(layer.gamma[c]);
    const long double z = add ? Exact(layer.z[i]) : 0;
    const long double beta = Exact(layer.beta[c]);
    long double want = product + beta + z;
    if (relu && want < 0) want = 0;
    const long double magnitude =
        std::abs(product) + std::abs(beta) + std::abs(z);
    if (!Near(y[i], want, magnitude)) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(y == layer.Forward(ReferenceBackend(), relu, add));
}

TEST_P(FusedBatchNormTest, ForwardEqualsTheFormulaAndTheReferenceBitForBit) {
  ForEachCase([&](const auto& layer) {
    ExpectForward(backend(), layer, true, false);
    ExpectForward(backend(), layer, false, true);
    ExpectForward(backend(), layer, true, true);
  });
}

// The sums, over the elements whose stored y is positive. Tolerance: n
// additions of terms of at most 4, each rounded by 2^-53 of a sum of at most
// 4n.
template <typename T>
void ExpectReduce(const Backend& backend, const FusedLayer<T>& layer,
                  bool add) {
  const auto channels = static_cast<size_t>(layer.shape.channels);
  const std::vector<T> y = layer.Forward(ReferenceBackend(), true, add);
  std::vector<T> dz(y.size());
  std::vector<double> sum(channels, 7), product(channels, 7);
  backend.BackwardReduce(
      layer.ReduceArgs(add ? y.data() : nullptr, sum, product, dz.data()));
  std::vector<long double> want_sum(channels), want_product(channels);
  int64_t wrong = 0;
  for (int64_t i = 0; i < Elements(layer.shape); ++i) {
    const int64_t c = ChannelOf(layer.shape, i);
    const long double want = Exact(y[i]) > 0 ? Exact(layer.dy[i]) : 0;
    if (Exact(dz[i]) != want) ++wrong;
    want_sum[c] += want;
    want_product[c] += want * (Exact(layer.x[i]) - layer.mean[c]);
  }
  EXPECT_EQ(wrong, 0);
  const double n = static_cast<double>(layer.shape.count());
  for (size_t c = 0; c < channels; ++c) {
    ASSERT_LE(std::abs(sum[c] - want_sum[c]), n * n * 4 * 0x1p-53L) << c;
    ASSERT_LE(std::abs(product[c] - want_product[c]), n * n * 4 * 0x1p-53L)
        << c;
  }
  // Whether dz is stored changes nothing of the sums.
  std::vector<double> sum_only(channels, 7), product_only(channels, 7);
  backend.BackwardReduce(layer.ReduceArgs(add ? y.data() : nullptr, sum_only,
                                          product_only, nullptr));
  EXPECT_EQ(sum_only, sum);
  EXPECT_EQ(product_only, product);
}

TEST_P(FusedBatchNormTest, SumsAndMaskedGradientAreThoseOfThePositiveOutputs) {
  ForEachCase([&](const auto& layer) {
    ExpectReduce(backend(), layer, false);
    ExpectReduce(backend(), layer, true);
  });
}

template <typename T, typename P>
void ExpectBackward(const Backend& backend, const FusedLayer<T, P>& layer,
                    bool relu, bool frozen) {
  const std::vector<T> y = layer.Forward(ReferenceBackend(), true, false);
  std::vector<T> dx(y.size());
  backend.BackwardElementwise(layer.BackwardArgs(relu, frozen, dx));
  const long double n = 3 * layer.shape.count();
  int64_t wrong = 0;
  for (int64_t i = 0; i < Elements(layer.shape); ++i) {
    const int64_t c = ChannelOf(layer.shape, i);
    const bool passes = !relu || Exact(y[i]) > 0;
    const long double dz = passes ? Exact(layer.dy[i]) : 0;
    const long double invstd = layer.invstd[c];
    const long double first = frozen ? 0 : layer.sum_dy[c] / n;
    const long double second = frozen ? 0
                                      : (Exact(layer.x[i]) - layer.mean[c]) *
                                            invstd * invstd *
                                            layer.sum_dy_xmu[c] / n;
    const long double scale = Exact(layer.gamma[c]) * invstd;
    const long double magnitude =
        std::abs(scale) * (std::abs(dz) + std::abs(first) + std::abs(second));
    if (!Near(dx[i], scale * (dz - first - second), magnitude)) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  std::vector<T> reference(dx.size());
  ReferenceBackend().BackwardElementwise(
      layer.BackwardArgs(relu, frozen, reference));
  EXPECT_TRUE(dx == reference);
}

TEST_P(FusedBatchNormTest, BackwardEqualsTheFormulaAndTheReferenceBitForBit) {
  ForEachCase([&](const auto& layer) {
    ExpectBackward(backend(), layer, true, false);
    ExpectBackward(backend(), layer, false, true);
    ExpectBackward(backend(), layer, true, true);
  });
}

TEST_P(FusedBatchNormTest, WithoutActivationItEqualsThemInEveryShapeToo) {
  for (const BatchShape& shape : InterestingShapes()) {
    ForEachType([&]<typename T>(std::type_identity<T>) {
      SCOPED_TRACE(absl::StrCat(Describe(shape), " of ", sizeof(T), " bytes"));
      const FusedLayer<T, T> layer(shape);
      ExpectForward(backend(), layer, false, false);
      ExpectBackward(backend(), layer, false, false);
    });
  }
}

// Pass 1 stores dz, pass 2 reads it: the same as a mask in pass 2.
TEST_P(FusedBatchNormTest, StoredGradientGivesWhatTheRecomputedMaskGives) {
  ForEachCase([&]<typename T>(const FusedLayer<T>& layer) {
    std::vector<T> masked(layer.x.size()), stored(layer.x.size());
    backend().BackwardElementwise(layer.BackwardArgs(true, false, masked));
    std::vector<double> sum(layer.mean.size()), product(layer.mean.size());
    FusedLayer<T> second = layer;
    backend().BackwardReduce(
        layer.ReduceArgs(nullptr, sum, product, second.dy.data()));
    backend().BackwardElementwise(second.BackwardArgs(false, false, stored));
    EXPECT_TRUE(stored == masked);
  });
}

TEST_P(FusedBatchNormTest, OutputsMayBeInputs) {
  ForEachCase([&]<typename T>(const FusedLayer<T>& layer) {
    const std::vector<T> y = layer.Forward(backend(), true, true);
    FusedLayer<T> over_x = layer;
    backend().Normalize(over_x.ForwardArgs(true, true, over_x.x));
    EXPECT_TRUE(over_x.x == y);
    FusedLayer<T> over_z = layer;
    backend().Normalize(over_z.ForwardArgs(true, true, over_z.z));
    EXPECT_TRUE(over_z.z == y);
    const std::vector<T> plain = layer.Forward(backend(), false, false);
    over_x = layer;
    backend().Normalize(over_x.ForwardArgs(false, false, over_x.x));
    EXPECT_TRUE(over_x.x == plain);

    std::vector<double> sum(layer.mean.size()), product(layer.mean.size());
    std::vector<T> dz(y.size());
    backend().BackwardReduce(
        layer.ReduceArgs(y.data(), sum, product, dz.data()));
    FusedLayer<T> over_dy = layer;
    backend().BackwardReduce(
        over_dy.ReduceArgs(y.data(), sum, product, over_dy.dy.data()));
    EXPECT_TRUE(over_dy.dy == dz);

    std::vector<T> dx(y.size());
    backend().BackwardElementwise(layer.BackwardArgs(true, false, dx));
    over_dy = layer;
    backend().BackwardElementwise(
        over_dy.BackwardArgs(true, false, over_dy.dy));
    EXPECT_TRUE(over_dy.dy == dx);
    backend().BackwardElementwise(layer.BackwardArgs(false, false, dx));
    over_dy = layer;
    backend().BackwardElementwise(
        over_dy.BackwardArgs(false, false, over_dy.dy));
    EXPECT_TRUE(over_dy.dy == dx);
    backend().BackwardElementwise(layer.BackwardArgs(true, false, dx));
    over_x = layer;
    backend().BackwardElementwise(over_x.BackwardArgs(true, false, over_x.x));
    EXPECT_TRUE(over_x.x == dx);
  });
}

// Activations around the smallest number of the type: some become 0 when they
// are stored, and then pass nothing, though they are above 0 in float64.
TEST_P(FusedBatchNormTest, MaskIsThatOfTheStoredOutput) {
  ForEachType([&]<typename T>(std::type_identity<T>) {
    constexpr bool kDouble = std::is_same_v<T, double>;
    constexpr bool kHalf = std::is_same_v<T, Float16>;
    const double smallest =
        kDouble ? 0x1p-1074
                : (kHalf ? 0x1p-24
                         : (std::is_same_v<T, float> ? 0x1p-149 : 0x1p-133));
    for (int64_t inner : {1, 100}) {
      FusedLayer<T> layer({.outer = 100, .channels = 2, .inner = inner});
      layer.mean.assign(2, 0);
      layer.invstd.assign(2, smallest);
      layer.gamma.assign(2, 1);
      layer.beta.assign(2, 0);
      layer.dy.assign(layer.dy.size(), T(1.0));
      const std::vector<T> y = layer.Forward(backend(), true, false);
      std::vector<double> sum(2), product(2);
      std::vector<T> dz(y.size());
      backend().BackwardReduce(
          layer.ReduceArgs(nullptr, sum, product, dz.data()));
      int64_t rounded_away = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const bool positive = Exact(y[i]) > 0;
        ASSERT_EQ(Exact(dz[i]), positive ? 1 : 0) << i;
        if (!positive && Exact(layer.x[i]) > 0) ++rounded_away;
      }
      EXPECT_GT(rounded_away, 0);
      EXPECT_GT(sum[0], 0);
    }
  });
}

TEST_P(FusedBatchNormTest, NanPassesTheReluBothWays) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t inner : {1, 100}) {
    FusedLayer<float> layer({.outer = 30, .channels = 3, .inner = inner});
    const size_t bad = layer.x.size() / 2;
    layer.x[bad] = static_cast<float>(kNan);
    const std::vector<float> y = layer.Forward(backend(), true, false);
    EXPECT_TRUE(std::isnan(y[bad]));
    std::vector<double> sum(3), product(3);
    std::vector<float> dz(y.size());
    backend().BackwardReduce(
        layer.ReduceArgs(nullptr, sum, product, dz.data()));
    EXPECT_EQ(dz[bad], layer.dy[bad]);
    backend().BackwardReduce(
        layer.ReduceArgs(y.data(), sum, product, dz.data()));
    EXPECT_EQ(dz[bad], layer.dy[bad]);
  }
}

// (3 - 1) * 0.5 * 4 + 8 = 12, in whatever type the parameters are.
TEST_P(FusedBatchNormTest, ParametersMayBeOfAnyType) {
  const std::vector<float> x(30, 3);
  const std::vector<double> mean(3, 1), invstd(3, 0.5);
  ForEachType([&]<typename T>(std::type_identity<T>) {
    const std::vector<T> gamma(3, T(4.0)), beta(3, T(8.0));
    std::vector<float> y(30);
    backend().Normalize({.shape = {.outer = 10, .channels = 3, .inner = 1},
                         .x = x.data(),
                         .mean = mean.data(),
                         .invstd = invstd.data(),
                         .parameter_type = TypeOf<T>(),
                         .gamma = gamma.data(),
                         .beta = beta.data(),
                         .y = y.data()});
    EXPECT_EQ(y, std::vector<float>(30, 12));
  });
}

TEST_P(FusedBatchNormTest, EmptyBatchTouchesNothingAndSumsToZero) {
  ForEachType([&]<typename T>(std::type_identity<T>) {
    const FusedLayer<T> layer({.outer = 0, .channels = 3, .inner = 4});
    std::vector<double> sum(3, 7), product(3, 7);
    backend().BackwardReduce(layer.ReduceArgs(nullptr, sum, product, nullptr));
    EXPECT_EQ(sum, std::vector<double>(3));
    EXPECT_EQ(product, std::vector<double>(3));
    EXPECT_TRUE(layer.Forward(backend(), true, true).empty());
    EXPECT_TRUE(layer.Forward(backend(), false, false).empty());
    std::vector<T> dx;
    backend().BackwardElementwise(layer.BackwardArgs(true, true, dx));
    backend().BackwardElementwise(layer.BackwardArgs(false, false, dx));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, FusedBatchNormTest,
                         testing::ValuesIn(AllBackends()), BackendCaseName);

}  // namespace
}  // namespace cohort::kernels
