#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

class NormalizeTest : public BackendTest {};
class BackwardElementwiseTest : public BackendTest {};

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
