#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

// A layer in the middle of a step, at uneven values.
template <typename T>
struct Layer {
  explicit Layer(const BatchShape& the_shape) : shape(the_shape) {
    Numbers numbers(12);
    x = numbers.Take<T>(Elements(shape), 3);
    dy = numbers.Take<T>(Elements(shape));
    mean = numbers.Take<double>(shape.channels, 3);
    invstd = numbers.Take<double>(shape.channels, 2);
    gamma = numbers.Take<T>(shape.channels, 1);
    beta = numbers.Take<T>(shape.channels);
    sum_dy = numbers.Take<double>(shape.channels, 0, 10);
    sum_dy_xmu = numbers.Take<double>(shape.channels, 0, 10);
  }

  NormalizeArgs Forward(std::vector<T>& y) const {
    return {.shape = shape,
            .type = TypeOf<T>(),
            .x = x.data(),
            .mean = mean.data(),
            .invstd = invstd.data(),
            .parameter_type = TypeOf<T>(),
            .gamma = gamma.data(),
            .beta = beta.data(),
            .y = y.data()};
  }

  BackwardElementwiseArgs Backward(std::vector<T>& dx) const {
    return {.shape = shape,
            .type = TypeOf<T>(),
            .x = x.data(),
            .dy = dy.data(),
            .mean = mean.data(),
            .invstd = invstd.data(),
            .parameter_type = TypeOf<T>(),
            .gamma = gamma.data(),
            .sum_dy = sum_dy.data(),
            .sum_dy_xmu = sum_dy_xmu.data(),
            .total_count = 2 * shape.count(),
            .dx = dx.data()};
  }

  BatchShape shape;
  std::vector<T> x, dy;
  std::vector<double> mean, invstd;
  std::vector<T> gamma, beta;
  std::vector<double> sum_dy, sum_dy_xmu;
};

class NormalizeTest : public BackendTest {};
class BackwardElementwiseTest : public BackendTest {};

template <typename T>
void ExpectExactForward(const Backend& backend, const BatchShape& shape) {
  SCOPED_TRACE(absl::StrCat(Describe(shape), " of ", sizeof(T), " bytes"));
  const Layer<T> layer(shape);
  std::vector<T> y(Elements(shape)), reference(Elements(shape));
  backend.Normalize(layer.Forward(y));
  int64_t wrong = 0;
  for (int64_t i = 0; i < Elements(shape); ++i) {
    const int64_t c = ChannelOf(shape, i);
    const long double product =
        (static_cast<long double>(static_cast<double>(layer.x[i])) -
         layer.mean[c]) *
        layer.invstd[c] * static_cast<double>(layer.gamma[c]);
    const auto beta = static_cast<double>(layer.beta[c]);
    const long double magnitude = std::abs(product) + std::abs(beta);
    if (!Near(y[i], product + beta, magnitude)) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  ReferenceBackend().Normalize(layer.Forward(reference));
  EXPECT_TRUE(y == reference);
}

TEST_P(NormalizeTest, EqualsTheFormulaAndTheReferenceBitForBit) {
  for (const BatchShape& shape : InterestingShapes()) {
    ForEachType([&]<typename T>(std::type_identity<T>) {
      ExpectExactForward<T>(backend(), shape);
    });
  }
}

// (3 - 1) * 0.5 = 1 without, 1 * 4 + 8 = 12 with gamma and beta.
TEST_P(NormalizeTest, ScaleAndShiftMayBeAbsent) {
  for (int64_t inner : {1, 100}) {
    const BatchShape shape = {.outer = 10, .channels = 2, .inner = inner};
    const std::vector<float> x(Elements(shape), 3);
    const std::vector<double> mean(2, 1), invstd(2, 0.5);
    const std::vector<float> gamma(2, 4), beta(2, 8);
    std::vector<float> y(Elements(shape));
    NormalizeArgs args = {.shape = shape,
                          .x = x.data(),
                          .mean = mean.data(),
                          .invstd = invstd.data(),
                          .y = y.data()};
    backend().Normalize(args);
    EXPECT_THAT(y, testing::Each(1));
    args.gamma = gamma.data();
    args.beta = beta.data();
    backend().Normalize(args);
    EXPECT_THAT(y, testing::Each(12));
  }
}

// A float32 near 1e4 has an ulp of 1e-3, so a mean rounded to float32 would be
// wrong by up to 5e-4; the difference must be right to float32 all the same.
TEST_P(NormalizeTest, KeepsDifferencesFarFromZero) {
  for (int64_t inner : {1, 100}) {
    const BatchShape shape = {.outer = 64, .channels = 1, .inner = inner};
    const std::vector<float> x(Elements(shape), 10001);
    const std::vector<double> mean = {10000.0004}, invstd = {1};
    std::vector<float> y(Elements(shape));
    backend().Normalize({.shape = shape,
                         .x = x.data(),
                         .mean = mean.data(),
                         .invstd = invstd.data(),
                         .y = y.data()});
    for (float value : y) ASSERT_NEAR(value, 0.9996, 1e-7);
  }
}

TEST_P(NormalizeTest, OutputMayBeTheInput) {
  for (const BatchShape& shape : InterestingShapes()) {
    Layer<float> layer(shape);
    std::vector<float> y(Elements(shape));
    backend().Normalize(layer.Forward(y));
    backend().Normalize(layer.Forward(layer.x));
    EXPECT_TRUE(layer.x == y) << Describe(shape);
  }
}

template <typename T>
void ExpectExactBackward(const Backend& backend, const BatchShape& shape) {
  SCOPED_TRACE(absl::StrCat(Describe(shape), " of ", sizeof(T), " bytes"));
  const Layer<T> layer(shape);
  std::vector<T> dx(Elements(shape)), reference(Elements(shape));
  backend.BackwardElementwise(layer.Backward(dx));
  const long double n = 2 * shape.count();
  int64_t wrong = 0;
  for (int64_t i = 0; i < Elements(shape); ++i) {
    const int64_t c = ChannelOf(shape, i);
    const long double dy = static_cast<double>(layer.dy[i]);
    const long double invstd = layer.invstd[c];
    const long double first = layer.sum_dy[c] / n;
    const long double second =
        (static_cast<double>(layer.x[i]) - layer.mean[c]) * invstd * invstd *
        layer.sum_dy_xmu[c] / n;
    const long double scale = static_cast<double>(layer.gamma[c]) * invstd;
    const long double magnitude =
        std::abs(scale) * (std::abs(dy) + std::abs(first) + std::abs(second));
    if (!Near(dx[i], scale * (dy - first - second), magnitude)) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  ReferenceBackend().BackwardElementwise(layer.Backward(reference));
  EXPECT_TRUE(dx == reference);
}

TEST_P(BackwardElementwiseTest, EqualsTheFormulaAndTheReferenceBitForBit) {
  for (const BatchShape& shape : InterestingShapes()) {
    ForEachType([&]<typename T>(std::type_identity<T>) {
      ExpectExactBackward<T>(backend(), shape);
    });
  }
}

TEST_P(BackwardElementwiseTest, OutputMayBeTheGradient) {
  for (const BatchShape& shape : InterestingShapes()) {
    Layer<float> layer(shape);
    std::vector<float> dx(Elements(shape));
    backend().BackwardElementwise(layer.Backward(dx));
    backend().BackwardElementwise(layer.Backward(layer.dy));
    EXPECT_TRUE(layer.dy == dx) << Describe(shape);
  }
}

TEST_P(BackwardElementwiseTest, EmptyBatchTouchesNothing) {
  const Layer<float> layer({.outer = 0, .channels = 3, .inner = 4});
  std::vector<float> out;
  backend().Normalize(layer.Forward(out));
  backend().BackwardElementwise(layer.Backward(out));
}

// Batch norm as a whole, in float64: loss = sum of dy * y.
struct WholeLayer {
  const Backend& backend;
  BatchShape shape;
  std::vector<double> dy, gamma;

  struct Statistics {
    std::vector<double> mean, invstd;
  };

  Statistics StatisticsOf(const std::vector<double>& x) const {
    Statistics s = {std::vector<double>(shape.channels),
                    std::vector<double>(shape.channels)};
    backend.Moments({.shape = shape,
                     .type = DataType::kFloat64,
                     .x = x.data(),
                     .mean = s.mean.data(),
                     .m2 = s.invstd.data()});
    for (double& v : s.invstd) v = 1 / std::sqrt(v / shape.count() + 1e-5);
    return s;
  }

  double Loss(const std::vector<double>& x) const {
    const Statistics s = StatisticsOf(x);
    std::vector<double> y(x.size());
    backend.Normalize({.shape = shape,
                       .type = DataType::kFloat64,
                       .x = x.data(),
                       .mean = s.mean.data(),
                       .invstd = s.invstd.data(),
                       .parameter_type = DataType::kFloat64,
                       .gamma = gamma.data(),
                       .y = y.data()});
    double loss = 0;
    for (size_t i = 0; i < x.size(); ++i) loss += dy[i] * y[i];
    return loss;
  }

  std::vector<double> Gradient(const std::vector<double>& x) const {
    const Statistics s = StatisticsOf(x);
    std::vector<double> sum(shape.channels), product(shape.channels);
    backend.BackwardReduce({.shape = shape,
                            .type = DataType::kFloat64,
                            .x = x.data(),
                            .dy = dy.data(),
                            .mean = s.mean.data(),
                            .sum_dy = sum.data(),
                            .sum_dy_xmu = product.data()});
    std::vector<double> dx(x.size());
    backend.BackwardElementwise({.shape = shape,
                                 .type = DataType::kFloat64,
                                 .x = x.data(),
                                 .dy = dy.data(),
                                 .mean = s.mean.data(),
                                 .invstd = s.invstd.data(),
                                 .parameter_type = DataType::kFloat64,
                                 .gamma = gamma.data(),
                                 .sum_dy = sum.data(),
                                 .sum_dy_xmu = product.data(),
                                 .total_count = shape.count(),
                                 .dx = dx.data()});
    return dx;
  }
};

// The gradient that the two backward kernels give is the slope of the loss
// that the two forward kernels give. Central differences of step 1e-5 err by
// about 1e-10 from curvature and as much from rounding.
TEST_P(BackwardElementwiseTest, IsTheSlopeOfTheForwardPass) {
  for (int64_t inner : {1, 3, 70}) {
    const BatchShape shape = {.outer = 4, .channels = 3, .inner = inner};
    Numbers numbers(13);
    std::vector<double> x = numbers.Take<double>(Elements(shape), 2);
    const WholeLayer layer = {backend(), shape,
                              numbers.Take<double>(Elements(shape)),
                              numbers.Take<double>(3, 2)};
    const std::vector<double> dx = layer.Gradient(x);
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < x.size(); ++i) {
      const double before = x[i];
      x[i] = before + kStep;
      const double above = layer.Loss(x);
      x[i] = before - kStep;
      const double below = layer.Loss(x);
      x[i] = before;
      ASSERT_NEAR(dx[i], (above - below) / (2 * kStep), 1e-7)
          << i << " of " << Describe(shape);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NormalizeTest,
                         testing::ValuesIn(AllBackends()), BackendCaseName);
INSTANTIATE_TEST_SUITE_P(Backends, BackwardElementwiseTest,
                         testing::ValuesIn(AllBackends()), BackendCaseName);

}  // namespace
}  // namespace cohort::kernels
