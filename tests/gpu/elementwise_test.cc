#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/statuses.h"
#include "tests/gpu/layer.h"
#include "tests/gpu/machine.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {
namespace {

class ElementwiseTest : public LayerTest {};

template <typename T>
double Value(T value) {
  return static_cast<double>(value);
}

// The exact result, and the magnitude of its terms.
struct Sum {
  double value = 0;
  double magnitude = 0;
};

template <typename T>
Sum ForwardOf(const Layer<T>& layer, int64_t i, bool add) {
  const int64_t c = ChannelOf(layer.shape, i);
  const double product =
      (Value(layer.x[i]) - layer.mean[c]) * layer.invstd[c] * layer.gamma[c];
  const double z = add ? Value(layer.z[i]) : 0;
  const double spread = std::abs(layer.invstd[c] * layer.gamma[c]);
  return {product + layer.beta[c] + z,
          std::abs(product) + std::abs(layer.beta[c]) + std::abs(z) +
              spread * std::abs(layer.mean[c]) * 0x1p-24};
}

template <typename T>
void ExpectForward(Machine& machine, const Layer<T>& layer, bool relu,
                   bool add) {
  const std::vector<T> y = layer.Forward(machine, relu, add);
  int64_t wrong = 0;
  for (int64_t i = 0; i < Elements(layer.shape); ++i) {
    const Sum want = ForwardOf(layer, i, add);
    const double value = relu && want.value < 0 ? 0 : want.value;
    if (!NearInFloat(y[i], value, want.magnitude)) ++wrong;
  }
  EXPECT_EQ(wrong, 0) << (relu ? "relu " : "") << (add ? "add" : "");
  EXPECT_TRUE(y == layer.Forward(machine, relu, add)) << "on repetition";
}

TEST_P(ElementwiseTest, ForwardEqualsTheFormula) {
  ForEachLayer([&](const auto& layer) {
    ExpectForward(machine(), layer, false, false);
    ExpectForward(machine(), layer, true, false);
    ExpectForward(machine(), layer, false, true);
    ExpectForward(machine(), layer, true, true);
  });
}

template <typename T>
void ExpectBackward(Machine& machine, const Layer<T>& layer, bool relu,
                    bool frozen) {
  const std::vector<T> y = layer.Forward(machine, true, false);
  const std::vector<T> dx = layer.Backward(machine, relu, frozen);
  const double n = 3.0 * static_cast<double>(layer.shape.count());
  int64_t wrong = 0;
  for (int64_t i = 0; i < Elements(layer.shape); ++i) {
    const int64_t c = ChannelOf(layer.shape, i);
    const double dz = !relu || Value(y[i]) > 0 ? Value(layer.dy[i]) : 0;
    const double invstd = layer.invstd[c];
    const double scale = layer.gamma[c] * invstd;
    const double first = frozen ? 0 : layer.sum_dy[c] / n;
    const double slope = frozen ? 0 : invstd * invstd * layer.sum_dy_xmu[c] / n;
    const double second = (Value(layer.x[i]) - layer.mean[c]) * slope;
    const double magnitude =
        std::abs(scale) * (std::abs(dz) + std::abs(first) + std::abs(second) +
                           std::abs(slope * layer.mean[c]) * 0x1p-24);
    if (!NearInFloat(dx[i], scale * (dz - first - second), magnitude)) ++wrong;
  }
  EXPECT_EQ(wrong, 0) << (relu ? "relu " : "") << (frozen ? "frozen" : "");
  EXPECT_TRUE(dx == layer.Backward(machine, relu, frozen)) << "on repetition";
}

TEST_P(ElementwiseTest, BackwardEqualsTheFormula) {
  ForEachLayer([&](const auto& layer) {
    ExpectBackward(machine(), layer, false, false);
    ExpectBackward(machine(), layer, true, false);
    ExpectBackward(machine(), layer, false, true);
    ExpectBackward(machine(), layer, true, true);
  });
}

// Mean 1e4 and deviation 1: the elements themselves are rounded by 2^-11, and
// the normalised ones must not lose more.
TEST_P(ElementwiseTest, NormalizeKeepsItsPrecisionFarFromZero) {
  for (int64_t inner : {1, 49, 600}) {
    Layer<float> layer({{.outer = 12, .channels = 3, .inner = inner}});
    layer.x = Numbers(4).Take<float>(Elements(layer.shape), 1e4, 1.7);
    layer.mean = {10000.0123456789, 9999.987654321, 10000.3};
    layer.invstd.assign(3, 1.0);
    layer.gamma.assign(3, 1.0F);
    layer.beta.assign(3, 0.0F);
    const std::vector<float> y = layer.Forward(machine(), false, false);
    for (size_t i = 0; i < y.size(); ++i) {
      const int64_t c = ChannelOf(layer.shape, static_cast<int64_t>(i));
      ASSERT_NEAR(y[i], layer.x[i] - layer.mean[c], 4 * 0x1p-24 * 3);
    }
  }
}

TEST_P(ElementwiseTest, NanStaysInItsElementAndPassesTheRelu) {
  for (int64_t inner : {1, 49, 600}) {
    Layer<float> layer({{.outer = 9, .channels = 3, .inner = inner}, 1});
    const size_t bad = layer.x.size() / 2;
    layer.x[bad] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = layer.Forward(machine(), true, true);
    const std::vector<float> dx = layer.Backward(machine(), true, false);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(std::isnan(y[i]), i == bad) << i;
      ASSERT_EQ(std::isnan(dx[i]), i == bad) << i;
    }
    // NaN in the mask passes the gradient.
    const std::vector<float> frozen = layer.Backward(machine(), true, true);
    EXPECT_FALSE(std::isnan(frozen[bad]));
    EXPECT_NE(frozen[bad], 0);
  }
}

TEST_P(ElementwiseTest, NegativeZeroDoesNotPassTheRelu) {
  Layer<float> layer({{.outer = 9, .channels = 3, .inner = 1}});
  layer.x.assign(layer.x.size(), -0.0F);
  layer.mean.assign(3, 0);
  layer.beta.assign(3, -0.0F);
  for (float y : layer.Forward(machine(), true, false)) {
    EXPECT_EQ(y, 0);
    EXPECT_FALSE(std::signbit(y));
  }
}

TEST_P(ElementwiseTest, OutputsMayBeInputs) {
  ForEachLayer([&]<typename T>(const Layer<T>& layer) {
    const std::vector<T> want = layer.Forward(machine(), true, true);
    const Tensor<T> x = layer.Put(machine(), layer.x);
    const Tensor<T> z = layer.Put(machine(), layer.z);
    const Tensor<double> mean(machine(), layer.mean);
    const Tensor<double> invstd(machine(), layer.invstd);
    const Tensor<float> gamma(machine(), layer.gamma);
    const Tensor<float> beta(machine(), layer.beta);
    ExpectOk(machine().Normalize({.shape = layer.shape,
                                  .type = TypeOf<T>(),
                                  .x = x.get(),
                                  .mean = mean.get(),
                                  .invstd = invstd.get(),
                                  .gamma = gamma.get(),
                                  .beta = beta.get(),
                                  .add = z.get(),
                                  .relu = true,
                                  .y = z.get()}));
    EXPECT_TRUE(z.Take() == want);
    machine().Clear();
  });
}

// Tensors of different alignment are read one element at a time.
TEST_P(ElementwiseTest, TensorsMayLieDifferently) {
  for (int64_t inner : {1, 49, 600}) {
    const Layer<BFloat16> layer({{.outer = 7, .channels = 5, .inner = inner}});
    const Tensor<BFloat16> x(machine(), layer.x, 3);
    const Tensor<BFloat16> y(machine(), layer.x, 5);
    const Tensor<double> mean(machine(), layer.mean);
    const Tensor<double> invstd(machine(), layer.invstd);
    ExpectOk(machine().Normalize({.shape = layer.shape,
                                  .type = DataType::kBFloat16,
                                  .x = x.get(),
                                  .mean = mean.get(),
                                  .invstd = invstd.get(),
                                  .y = y.get()}));
    const std::vector<BFloat16> got = y.Take();
    Layer<BFloat16> plain = layer;
    plain.gamma.assign(5, 1);
    plain.beta.assign(5, 0);
    EXPECT_TRUE(got == plain.Forward(machine(), false, false));
  }
}

// (3 - 1) * 0.5 * 4 + 8 = 12, in whatever type the parameters are.
TEST_P(ElementwiseTest, ParametersMayBeOfAnyType) {
  ForEachType([&]<typename P>(std::type_identity<P>) {
    const Tensor<float> x(machine(), std::vector<float>(30, 3));
    const Tensor<float> y(machine(), std::vector<float>(30));
    const Tensor<double> mean(machine(), std::vector<double>(3, 1));
    const Tensor<double> invstd(machine(), std::vector<double>(3, 0.5));
    const Tensor<P> gamma(machine(), std::vector<P>(3, P(4.0)));
    const Tensor<P> beta(machine(), std::vector<P>(3, P(8.0)));
    ExpectOk(
        machine().Normalize({.shape = {.outer = 10, .channels = 3, .inner = 1},
                             .x = x.get(),
                             .mean = mean.get(),
                             .invstd = invstd.get(),
                             .parameter_type = TypeOf<P>(),
                             .gamma = gamma.get(),
                             .beta = beta.get(),
                             .y = y.get()}));
    EXPECT_EQ(y.Take(), std::vector<float>(30, 12));
    machine().Clear();
  });
}

INSTANTIATE_TEST_SUITE_P(Machines, ElementwiseTest,
                         testing::ValuesIn(AllMachines()), MachineCaseName);

}  // namespace
}  // namespace cohort::kernels::cuda
