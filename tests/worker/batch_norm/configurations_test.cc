// Compares every configuration of a layer with the stock operator in float64 on
// the joined batch: outputs, gradients and moving statistics over several
// steps, for one, two and three workers, even and uneven.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "common/model_layout.h"
#include "kernels/backend.h"
#include "server/core/statistics/moving_statistics.h"
#include "tests/worker/batch_norm/joined_batch.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/functional.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kConfigurationChannels = 5;

struct TypeCase {
  at::ScalarType type;
  Tolerance tolerance;
};

// Outputs are computed in float64 from the given inputs and rounded once: half
// an ulp, 2^-24, 2^-11 and 2^-8 of the value, and a little for float64's own
// rounding, amplified by a deviation of 1/2. Gradients of scale and shift are
// rounded to float32 once a worker, and cancel across workers by a factor of
// ten at most.
const std::vector<TypeCase>& AllTypes() {
  static const std::vector<TypeCase>* const kTypes = new std::vector<TypeCase>{
      {at::kDouble, {.tensors = 1e-12, .parameters = 1e-11}},
      {at::kFloat, {.tensors = 0x1.01p-24, .parameters = 2e-6}},
      {at::kHalf, {.tensors = 0x1.01p-11, .parameters = 2e-6}},
      {at::kBFloat16, {.tensors = 0x1.01p-8, .parameters = 2e-6}}};
  return *kTypes;
}

// Rows of each worker.
const std::vector<std::vector<int64_t>>& AllCohorts() {
  static const auto* const kCohorts = new std::vector<std::vector<int64_t>>{
      {7}, {4, 4}, {6, 2}, {3, 3, 3}, {5, 0, 2}};
  return *kCohorts;
}

struct Shape {
  std::vector<int64_t> rest;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

const std::vector<Shape>& AllShapes() {
  static const auto* const kShapes = new std::vector<Shape>{
      {.rest = {}},
      {.rest = {4}},
      {.rest = {3, 2}},
      {.rest = {3, 2}, .format = at::MemoryFormat::ChannelsLast},
      {.rest = {2, 1, 3}},
      {.rest = {2, 1, 3}, .format = at::MemoryFormat::ChannelsLast3d}};
  return *kShapes;
}

Case CaseOf(const std::vector<int64_t>& rows, const Shape& shape,
            at::ScalarType type, uint64_t seed) {
  Case values =
      RandomCase(rows, kConfigurationChannels, shape.rest, type, seed);
  for (std::vector<at::Tensor>* tensors : {&values.x, &values.z, &values.dy}) {
    for (at::Tensor& one : *tensors) one = one.contiguous(shape.format);
  }
  return values;
}

std::vector<RankMoments> MomentsOf(const std::vector<Outcome>& parts) {
  std::vector<RankMoments> ranks;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    ranks.push_back({.rank = Rank(static_cast<int32_t>(rank)),
                     .samples = 1,
                     .calls = parts[rank].moments});
  }
  return ranks;
}

// The server's statistics over the steps of a layer.
struct ServerSide {
  explicit ServerSide(const BatchNormBinding& binding)
      : rule(StatisticsKind::kSync,
             {binding.layers().begin(), binding.layers().end()}),
        held(binding.Statistics()) {}

  void Apply(const std::vector<Outcome>& parts) {
    rule.ApplyStep(MomentsOf(parts), /*samples_reference=*/1, held);
  }

  MovingStatistics rule;
  std::vector<LayerStatistics> held;
};

// Statistics are rounded to float32 at each update, as torch's are.
constexpr double kFloatRounding = 2e-7;

void ExpectStatistics(const LayerStatistics& seen, Layer& wanted) {
  auto buffers = wanted.module->named_buffers();
  EXPECT_TRUE(Close(torch::tensor(seen.mean, at::kDouble),
                    buffers["running_mean"], kFloatRounding))
      << "running mean";
  EXPECT_TRUE(Close(torch::tensor(seen.variance, at::kDouble),
                    buffers["running_var"], kFloatRounding))
      << "running variance";
  EXPECT_EQ(seen.num_batches_tracked,
            buffers["num_batches_tracked"].item<int64_t>());
}

void ExpectTrainsLikeOneProcess(const LayerConfig& config,
                                const std::vector<int64_t>& rows,
                                const Shape& shape, const TypeCase& type) {
  const Case first = CaseOf(rows, shape, type.type, 0);
  const Layer layer = MakeLayer(first.x[0].dim(), config, first);
  const auto binding = BatchNormBinding::Make(*layer.module);
  ServerSide server(*binding);
  Layer reference = Float64Layer(config, first);
  for (int step = 0; step < kSteps; ++step) {
    Case values = CaseOf(rows, shape, type.type, static_cast<uint64_t>(step));
    values.gamma = first.gamma;
    values.beta = first.beta;
    values.running_mean = first.running_mean;
    values.running_var = first.running_var;
    const std::vector<Outcome> parts =
        RunCohort(config, values, kernels::CpuBackend());
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      EXPECT_EQ(parts[rank].moments.size(),
                config.eval && config.track ? size_t{0} : size_t(config.calls));
    }
    ExpectSame(parts, RunJoined(reference, config, values), values,
               type.tolerance);
    server.Apply(parts);
  }
  if (config.track) ExpectStatistics(server.held[0], reference);
}

void ExpectTrainsLikeOneProcess(const LayerConfig& config) {
  for (const TypeCase& type : AllTypes()) {
    for (const Shape& shape : AllShapes()) {
      for (const std::vector<int64_t>& rows : AllCohorts()) {
        SCOPED_TRACE(::testing::Message()
                     << type.type << ", " << shape.format << ", "
                     << shape.rest.size() << " axes more, rows "
                     << ::testing::PrintToString(rows));
        ExpectTrainsLikeOneProcess(config, rows, shape, type);
      }
    }
  }
}

TEST(BatchNormConfigurationsTest, DefaultsTrainLikeOneProcess) {
  ExpectTrainsLikeOneProcess(LayerConfig{});
}

TEST(BatchNormConfigurationsTest, WithoutScaleAndShift) {
  ExpectTrainsLikeOneProcess({.affine = false});
}

TEST(BatchNormConfigurationsTest, CumulativeAverage) {
  ExpectTrainsLikeOneProcess({.momentum = std::nullopt});
}

TEST(BatchNormConfigurationsTest, WithoutMovingStatistics) {
  ExpectTrainsLikeOneProcess({.track = false});
}

TEST(BatchNormConfigurationsTest, WithoutAnything) {
  ExpectTrainsLikeOneProcess({.affine = false, .track = false});
}

// There are no statistics to freeze: the moments of the step are used, as in
// training mode.
TEST(BatchNormConfigurationsTest, EvalModeWithoutMovingStatistics) {
  ExpectTrainsLikeOneProcess({.track = false, .eval = true});
}

TEST(BatchNormConfigurationsTest, FrozenStatistics) {
  ExpectTrainsLikeOneProcess({.eval = true});
  ExpectTrainsLikeOneProcess({.affine = false, .eval = true});
}

TEST(BatchNormConfigurationsTest, FrozenScaleAndShift) {
  ExpectTrainsLikeOneProcess({.frozen_affine = true});
}

TEST(BatchNormConfigurationsTest, AllFrozen) {
  ExpectTrainsLikeOneProcess({.eval = true, .frozen_affine = true});
}

TEST(BatchNormConfigurationsTest, FusedRelu) {
  ExpectTrainsLikeOneProcess({.relu = true});
  ExpectTrainsLikeOneProcess({.affine = false, .relu = true});
  ExpectTrainsLikeOneProcess({.eval = true, .relu = true});
  ExpectTrainsLikeOneProcess(
      {.eval = true, .frozen_affine = true, .relu = true});
}

TEST(BatchNormConfigurationsTest, FusedAddAndRelu) {
  ExpectTrainsLikeOneProcess({.relu = true, .add = true});
  ExpectTrainsLikeOneProcess({.affine = false, .relu = true, .add = true});
  ExpectTrainsLikeOneProcess({.eval = true, .relu = true, .add = true});
}

// Each call is a separate batch: two updates a step, in call order.
TEST(BatchNormConfigurationsTest, LayerCalledTwiceInAStep) {
  for (const std::vector<int64_t>& rows : AllCohorts()) {
    const TypeCase exact = AllTypes()[0];
    ExpectTrainsLikeOneProcess({.calls = 2}, rows, {.rest = {4}}, exact);
    ExpectTrainsLikeOneProcess({.momentum = std::nullopt, .calls = 2}, rows,
                               {.rest = {3, 2}}, exact);
  }
}

TEST(BatchNormConfigurationsTest, KerasKeepsTheBiasedVariance) {
  const Case values = CaseOf({4, 2}, {.rest = {3}}, at::kFloat, 1);
  const Layer layer = MakeLayer(3, {.momentum = 0.01}, values);
  const auto binding = BatchNormBinding::Make(
      *layer.module, {.convention = StatisticsConvention::kKeras});
  ASSERT_EQ(binding->layers()[0].convention, StatisticsConvention::kKeras);
  ServerSide server(*binding);
  server.Apply(RunCohort({}, values, kernels::CpuBackend()));
  // Keras: moving = moving * momentum + batch * (1 - momentum), momentum 0.99.
  const at::Tensor x = at::cat(values.x).to(at::kDouble);
  const at::Tensor mean = values.running_mean.to(at::kDouble) * 0.99 +
                          x.mean(std::vector<int64_t>{0, 2}) * 0.01;
  const at::Tensor variance =
      values.running_var.to(at::kDouble) * 0.99 +
      x.var(std::vector<int64_t>{0, 2}, /*unbiased=*/false) * 0.01;
  EXPECT_TRUE(Close(torch::tensor(server.held[0].mean, at::kDouble), mean,
                    kFloatRounding));
  EXPECT_TRUE(Close(torch::tensor(server.held[0].variance, at::kDouble),
                    variance, kFloatRounding));
}

// The module's forward refuses a worker with one element a channel, such as
// an image pooled to 1x1; two of them are a batch of two.
TEST(BatchNormConfigurationsTest, OneElementAWorkerIsPartOfTheBatch) {
  for (const TypeCase& type : AllTypes()) {
    const Case values = CaseOf({1, 1, 1}, {.rest = {1, 1}}, type.type, 2);
    for (const LayerConfig& config :
         {LayerConfig{.own_call = true},
          LayerConfig{.own_call = true, .relu = true, .add = true}}) {
      ExpectEqualsJoinedBatch(config, values, kernels::CpuBackend(),
                              type.tolerance);
    }
  }
}

// PyTorch refuses this case, so the expected values are by hand: x - mean is 0.
TEST(BatchNormConfigurationsTest, OneElementInAllBecomesTheShift) {
  const Case values = CaseOf({1}, {.rest = {1, 1}}, at::kDouble, 3);
  const LayerConfig config{.own_call = true};
  const Layer layer = MakeLayer(4, config, values);
  const auto binding = BatchNormBinding::Make(*layer.module);
  ServerSide server(*binding);
  const std::vector<Outcome> parts =
      RunCohort(config, values, kernels::CpuBackend());
  EXPECT_TRUE(at::equal(parts[0].y.flatten(), values.beta));
  EXPECT_TRUE(at::equal(parts[0].dx, at::zeros_like(parts[0].dx)));
  EXPECT_TRUE(at::equal(parts[0].dgamma, at::zeros_like(parts[0].dgamma)));
  EXPECT_TRUE(at::equal(parts[0].dbeta, values.dy[0].flatten()));
  server.Apply(parts);
  // One element has a mean, but no unbiased variance.
  EXPECT_TRUE(Close(torch::tensor(server.held[0].mean, at::kDouble),
                    values.running_mean * 0.9 + values.x[0].flatten() * 0.1,
                    kFloatRounding));
  EXPECT_TRUE(at::equal(torch::tensor(server.held[0].variance, at::kDouble),
                        values.running_var));
}

TEST(BatchNormConfigurationsTest, NobodyHasElementsAndNothingMoves) {
  for (const TypeCase& type : AllTypes()) {
    for (const LayerConfig& config :
         {LayerConfig{}, LayerConfig{.relu = true},
          LayerConfig{.relu = true, .add = true}, LayerConfig{.eval = true}}) {
      const Case values = CaseOf({0, 0}, {.rest = {2, 2}}, type.type, 4);
      const Layer layer = MakeLayer(4, config, values);
      const auto binding = BatchNormBinding::Make(*layer.module);
      ServerSide server(*binding);
      const std::vector<LayerStatistics> before = server.held;
      const std::vector<Outcome> parts =
          RunCohort(config, values, kernels::CpuBackend());
      server.Apply(parts);
      EXPECT_EQ(server.held, before);
      for (const Outcome& part : parts) {
        EXPECT_EQ(part.y.sizes(), values.x[0].sizes());
        EXPECT_EQ(part.dx.sizes(), values.x[0].sizes());
        EXPECT_TRUE(at::equal(part.dgamma, at::zeros_like(part.dgamma)));
        EXPECT_TRUE(at::equal(part.dbeta, at::zeros_like(part.dbeta)));
      }
    }
  }
}

// Models pass slices, transposes and broadcast gradients.
TEST(BatchNormConfigurationsTest, OtherStridesAreMadeContiguous) {
  torch::manual_seed(5);
  const at::Tensor wide =
      at::randn({4, 3, 6, kConfigurationChannels}, at::kDouble);
  torch::nn::BatchNorm2d ours(kConfigurationChannels);
  torch::nn::BatchNorm2d stock(kConfigurationChannels);
  ours->to(at::kDouble);
  stock->to(at::kDouble);
  const auto binding = BatchNormBinding::Make(*ours);
  StepContext step{.backend = &kernels::CpuBackend()};
  const BatchNormScope scope(*binding, &step);
  auto run = [&wide](torch::nn::BatchNorm2d& norm, bool fused) {
    const at::Tensor leaf = wide.clone().requires_grad_();
    // Every second column of [4, C, 6, 3], and another such slice.
    const at::Tensor x = leaf.permute({0, 3, 2, 1}).slice(2, 0, 6, /*step=*/2);
    const at::Tensor z = leaf.permute({0, 3, 2, 1}).slice(2, 1, 6, /*step=*/2);
    const at::Tensor y =
        fused ? BatchNormAddRelu(norm, x, z) : at::relu(norm(x) + z);
    // The gradient of a sum is one number, expanded.
    y.sum().backward();
    return std::pair(y.detach(), leaf.grad());
  };
  const auto [y, dx] = run(ours, true);
  const auto [wanted_y, wanted_dx] = run(stock, false);
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_TRUE(Close(y, wanted_y, 1e-12));
  EXPECT_TRUE(Close(dx, wanted_dx, 1e-12));
}

}  // namespace
}  // namespace cohort
