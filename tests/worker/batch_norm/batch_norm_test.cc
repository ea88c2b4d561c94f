// What the layers compute: several workers, each a thread, against the stock
// operator in float64 on the joined batch.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/fakes/thread_rendezvous.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

// Inputs, upstream gradients and parameters of one batch-norm call; one entry
// of x and dy a worker.
struct Case {
  std::vector<at::Tensor> x;
  std::vector<at::Tensor> dy;
  at::Tensor gamma;
  at::Tensor beta;
};

struct Outcome {
  at::Tensor y;
  at::Tensor dx;
  at::Tensor dgamma;
  at::Tensor dbeta;
};

constexpr double kEpsilon = 1e-5;

// A one-layer model for inputs of `dims` dimensions, and how to call it.
struct Layer {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

Layer MakeLayer(int64_t dims, const Case& values) {
  using torch::nn::BatchNorm1dImpl;
  using torch::nn::BatchNorm2dImpl;
  using torch::nn::BatchNorm3dImpl;
  const auto options =
      torch::nn::BatchNormOptions(values.gamma.numel()).eps(kEpsilon);
  Layer layer;
  if (dims <= 3) {
    auto norm = std::make_shared<BatchNorm1dImpl>(options);
    layer = {norm, [norm](const at::Tensor& x) { return norm->forward(x); }};
  } else if (dims == 4) {
    auto norm = std::make_shared<BatchNorm2dImpl>(options);
    layer = {norm, [norm](const at::Tensor& x) { return norm->forward(x); }};
  } else {
    auto norm = std::make_shared<BatchNorm3dImpl>(options);
    layer = {norm, [norm](const at::Tensor& x) { return norm->forward(x); }};
  }
  layer.module->to(values.gamma.scalar_type());
  const torch::NoGradGuard no_grad;
  layer.module->named_parameters()["weight"].copy_(values.gamma);
  layer.module->named_parameters()["bias"].copy_(values.beta);
  return layer;
}

Outcome RunLayer(Layer& layer, const at::Tensor& input, const at::Tensor& dy) {
  const at::Tensor x = input.detach().clone().requires_grad_();
  const at::Tensor y = layer.forward(x);
  y.backward(dy);
  const auto parameters = layer.module->named_parameters();
  return {.y = y.detach(),
          .dx = x.grad(),
          .dgamma = parameters["weight"].grad(),
          .dbeta = parameters["bias"].grad()};
}

std::vector<Outcome> RunCohort(const Case& values,
                               const kernels::Backend& backend) {
  const size_t workers = values.x.size();
  ThreadRendezvous rendezvous(workers);
  std::vector<Outcome> outcomes(workers);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      Layer layer = MakeLayer(values.x[rank].dim(), values);
      const auto binding = BatchNormBinding::Make(*layer.module);
      StepContext step{.rendezvous = &rendezvous.OfRank(rank),
                       .backend = &backend};
      const BatchNormScope scope(*binding, &step);
      outcomes[rank] = RunLayer(layer, values.x[rank], values.dy[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// The stock operator in float64 on the joined batch.
Outcome RunJoined(const Case& values) {
  Case joined = values;
  joined.gamma = values.gamma.to(at::kDouble);
  joined.beta = values.beta.to(at::kDouble);
  Layer layer = MakeLayer(values.x[0].dim(), joined);
  return RunLayer(layer, at::cat(values.x).to(at::kDouble),
                  at::cat(values.dy).to(at::kDouble));
}

::testing::AssertionResult Close(const at::Tensor& seen,
                                 const at::Tensor& wanted, double tolerance) {
  if (seen.sizes() != wanted.sizes()) {
    return ::testing::AssertionFailure()
           << "shape " << seen.sizes() << ", want " << wanted.sizes();
  }
  const at::Tensor error =
      (seen.to(at::kDouble) - wanted.to(at::kDouble)).abs() /
      (1.0 + wanted.to(at::kDouble).abs());
  if (error.numel() == 0 || error.max().item<double>() <= tolerance) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "largest error " << error.max().item<double>() << ", allowed "
         << tolerance;
}

void ExpectEqualsJoinedBatch(const Case& values,
                             const kernels::Backend& backend,
                             double tolerance) {
  const std::vector<Outcome> parts = RunCohort(values, backend);
  const Outcome whole = RunJoined(values);
  std::vector<at::Tensor> y;
  std::vector<at::Tensor> dx;
  at::Tensor dgamma = at::zeros_like(whole.dgamma);
  at::Tensor dbeta = at::zeros_like(whole.dbeta);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    EXPECT_EQ(parts[rank].y.strides(), values.x[rank].strides());
    EXPECT_EQ(parts[rank].dx.strides(), values.x[rank].strides());
    y.push_back(parts[rank].y);
    dx.push_back(parts[rank].dx);
    // Local on purpose: the push sums them over the ranks.
    dgamma += parts[rank].dgamma;
    dbeta += parts[rank].dbeta;
  }
  EXPECT_TRUE(Close(at::cat(y), whole.y, tolerance)) << "y";
  EXPECT_TRUE(Close(at::cat(dx), whole.dx, tolerance)) << "dx";
  EXPECT_TRUE(Close(dgamma, whole.dgamma, tolerance)) << "dgamma";
  EXPECT_TRUE(Close(dbeta, whole.dbeta, tolerance)) << "dbeta";
}

// Workers with `rows` rows each of [rows, channels, rest...].
Case RandomCase(const std::vector<int64_t>& rows, int64_t channels,
                const std::vector<int64_t>& rest, at::ScalarType type) {
  torch::manual_seed(7);
  Case made;
  for (const int64_t n : rows) {
    std::vector<int64_t> sizes = {n, channels};
    sizes.insert(sizes.end(), rest.begin(), rest.end());
    made.x.push_back(at::randn(sizes, type) * 2 + 3);
    made.dy.push_back(at::randn(sizes, type));
  }
  made.gamma = at::rand({channels}, type) + 0.5;
  made.beta = at::randn({channels}, type);
  return made;
}

TEST(BatchNormTest, UnevenWorkersAndAnEmptyOneEqualTheJoinedBatch) {
  for (const std::vector<int64_t>& rest :
       {std::vector<int64_t>{}, {4}, {3, 4}, {2, 3, 2}}) {
    SCOPED_TRACE(rest.size());
    const Case values = RandomCase({5, 0, 17, 2}, 6, rest, at::kDouble);
    ExpectEqualsJoinedBatch(values, kernels::CpuBackend(), 1e-10);
    ExpectEqualsJoinedBatch(values, kernels::ReferenceBackend(), 1e-10);
  }
}

TEST(BatchNormTest, KeepsChannelsLastInAndOut) {
  Case flat = RandomCase({3, 4}, 6, {5, 4}, at::kDouble);
  Case deep = RandomCase({3, 4}, 6, {2, 5, 4}, at::kDouble);
  for (size_t k = 0; k < 2; ++k) {
    flat.x[k] = flat.x[k].contiguous(at::MemoryFormat::ChannelsLast);
    deep.x[k] = deep.x[k].contiguous(at::MemoryFormat::ChannelsLast3d);
  }
  ExpectEqualsJoinedBatch(flat, kernels::CpuBackend(), 1e-10);
  ExpectEqualsJoinedBatch(deep, kernels::CpuBackend(), 1e-10);
}

TEST(BatchNormTest, Float32FollowsTheJoinedBatchForAnyChannelCount) {
  // Rounding of float32 outputs is 6e-8 of values of order 10, and dgamma
  // sums about 100 of them after float64 sums of float32 products.
  for (const int64_t channels : {1, 3, 64, 65, 100, 2049}) {
    SCOPED_TRACE(channels);
    Case values = RandomCase({3, 5}, channels, {3, 4}, at::kFloat);
    ExpectEqualsJoinedBatch(values, kernels::CpuBackend(), 2e-6);
    for (at::Tensor& x : values.x) {
      x = x.contiguous(at::MemoryFormat::ChannelsLast);
    }
    ExpectEqualsJoinedBatch(values, kernels::CpuBackend(), 2e-6);
  }
}

TEST(BatchNormTest, WorkersFarApartShareOneVariance) {
  // Each worker's own variance is 4; the cohort's is a million.
  Case values = RandomCase({6, 6}, 3, {4}, at::kDouble);
  values.x[0] += 1000;
  values.x[1] -= 1000;
  ExpectEqualsJoinedBatch(values, kernels::CpuBackend(), 1e-10);
}

TEST(BatchNormTest, ConstantChannelBecomesTheShift) {
  Case values = RandomCase({4, 3}, 3, {2}, at::kDouble);
  for (at::Tensor& x : values.x) x.select(1, 1).fill_(0.5);
  ExpectEqualsJoinedBatch(values, kernels::CpuBackend(), 1e-10);
  const std::vector<Outcome> parts = RunCohort(values, kernels::CpuBackend());
  EXPECT_TRUE(
      Close(parts[0].y.select(1, 1), values.beta[1].expand({4, 2}), 1e-15));
}

TEST(BatchNormTest, LargeMeanKeepsItsVarianceInFloat32) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({64, 2, 8, 8}) + 1e4;
  torch::nn::BatchNorm2d norm(2);
  const auto binding = BatchNormBinding::Make(*norm);
  StepContext step{.backend = &kernels::CpuBackend()};
  {
    const BatchNormScope scope(*binding, &step);
    norm->forward(x);
  }
  ASSERT_EQ(step.moments.size(), 1U);
  const Moments& moments = step.moments[0].moments;
  EXPECT_EQ(moments.count, 64 * 8 * 8);
  const at::Tensor wanted =
      x.to(at::kDouble).var(std::vector<int64_t>{0, 2, 3}, false);
  for (int64_t c = 0; c < 2; ++c) {
    const double variance =
        moments.second[static_cast<size_t>(c)] / (64.0 * 8 * 8);
    EXPECT_NEAR(variance, wanted[c].item<double>(), 1e-3);
  }
}

TEST(BatchNormTest, WorkerZerosInputMovesWorkerOnesLoss) {
  // Only worker 1 has a loss, sum(y * dy); worker 0 feels it through the
  // moments alone.
  Case values = RandomCase({3, 4}, 2, {}, at::kDouble);
  values.dy[0].zero_();
  auto loss_of_worker_one = [&values] {
    const std::vector<Outcome> parts = RunCohort(values, kernels::CpuBackend());
    return (parts[1].y * values.dy[1]).sum().item<double>();
  };
  const at::Tensor dx = RunCohort(values, kernels::CpuBackend())[0].dx;
  const double h = 1e-5;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t c = 0; c < 2; ++c) {
      const double x = values.x[0][row][c].item<double>();
      values.x[0][row][c] = x + h;
      const double above = loss_of_worker_one();
      values.x[0][row][c] = x - h;
      const double below = loss_of_worker_one();
      values.x[0][row][c] = x;
      EXPECT_NEAR(dx[row][c].item<double>(), (above - below) / (2 * h), 1e-6);
    }
  }
  EXPECT_GT(dx.abs().max().item<double>(), 1e-3) << "the test is vacuous";
}

TEST(BatchNormTest, NobodyHasSamples) {
  const Case values = RandomCase({0, 0}, 3, {2, 2}, at::kFloat);
  for (const Outcome& part : RunCohort(values, kernels::CpuBackend())) {
    EXPECT_EQ(part.y.sizes(), (std::vector<int64_t>{0, 3, 2, 2}));
    EXPECT_EQ(part.dx.sizes(), (std::vector<int64_t>{0, 3, 2, 2}));
    EXPECT_TRUE(Close(part.dgamma, at::zeros({3}), 0));
    EXPECT_TRUE(Close(part.dbeta, at::zeros({3}), 0));
  }
}

TEST(BatchNormTest, EqualInputsGiveEqualBits) {
  const Case values = RandomCase({3, 5}, 65, {3, 4}, at::kFloat);
  const std::vector<Outcome> a = RunCohort(values, kernels::CpuBackend());
  const std::vector<Outcome> b = RunCohort(values, kernels::CpuBackend());
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(at::equal(a[rank].y, b[rank].y));
    EXPECT_TRUE(at::equal(a[rank].dx, b[rank].dx));
    EXPECT_TRUE(at::equal(a[rank].dgamma, b[rank].dgamma));
  }
}

}  // namespace
}  // namespace cohort
