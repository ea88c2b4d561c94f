#include "tests/worker/batch_norm/joined_batch.h"

#include <torch/torch.h>

#include <thread>
#include <utility>

#include "tests/fakes/thread_rendezvous.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/functional.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

constexpr double kEpsilon = 1e-5;

// The sum of the layer's outputs for x, 2x, ...
template <typename Forward>
at::Tensor CallTimes(int32_t calls, const at::Tensor& x, Forward forward) {
  at::Tensor y = forward(x);
  for (int32_t i = 1; i < calls; ++i) y = y + forward(x * (i + 1));
  return y;
}

template <typename Impl>
Layer Wrap(const LayerConfig& config, int64_t channels) {
  auto options = torch::nn::BatchNormOptions(channels)
                     .eps(kEpsilon)
                     .affine(config.affine)
                     .track_running_stats(config.track);
  options.momentum(torch::nullopt);
  if (config.momentum.has_value()) options.momentum(*config.momentum);
  auto norm = std::make_shared<Impl>(options);
  Layer layer;
  layer.module = norm;
  layer.stock = [norm, config](const at::Tensor& x, const at::Tensor& z) {
    at::Tensor y = CallTimes(config.calls, x, [&](const at::Tensor& input) {
      return norm->forward(input);
    });
    if (config.add) y = y + z;
    return config.relu ? at::relu(y) : y;
  };
  layer.own = layer.stock;
  if (!config.own_call && !config.relu) return layer;
  layer.own = [norm, config](const at::Tensor& x, const at::Tensor& z) {
    if (config.add) return BatchNormAddRelu(norm, x, z);
    return config.relu ? BatchNormRelu(norm, x) : BatchNorm(norm, x);
  };
  return layer;
}

Layer WrapFor(int64_t dims, const LayerConfig& config, int64_t channels) {
  if (dims <= 3) return Wrap<torch::nn::BatchNorm1dImpl>(config, channels);
  if (dims == 4) return Wrap<torch::nn::BatchNorm2dImpl>(config, channels);
  return Wrap<torch::nn::BatchNorm3dImpl>(config, channels);
}

at::Tensor GradientOf(const Layer& layer, const char* name) {
  const auto parameters = layer.module->named_parameters();
  const at::Tensor* parameter = parameters.find(name);
  return parameter == nullptr ? at::Tensor() : parameter->grad();
}

template <typename Forward>
Outcome RunLayer(const Layer& layer, Forward forward, const at::Tensor& input,
                 const at::Tensor& addend, const at::Tensor& dy, bool add) {
  const at::Tensor x = input.detach().clone().requires_grad_();
  const at::Tensor z = addend.detach().clone().requires_grad_();
  layer.module->zero_grad();
  const at::Tensor y = forward(x, z);
  y.backward(dy);
  return {.y = y.detach(),
          .dx = x.grad(),
          .dz = add ? z.grad() : at::Tensor(),
          .dgamma = GradientOf(layer, "weight"),
          .dbeta = GradientOf(layer, "bias")};
}

void AddTo(at::Tensor& sum, const at::Tensor& part) {
  if (!part.defined()) return;
  const at::Tensor wide = part.to(at::kDouble);
  sum = sum.defined() ? sum + wide : wide;
}

void ExpectClose(const char* what, const at::Tensor& seen,
                 const at::Tensor& wanted, double tolerance) {
  ASSERT_EQ(seen.defined(), wanted.defined()) << what;
  if (seen.defined()) {
    EXPECT_TRUE(Close(seen, wanted, tolerance)) << what;
  }
}

}  // namespace

Case RandomCase(const std::vector<int64_t>& rows, int64_t channels,
                const std::vector<int64_t>& rest, at::ScalarType type,
                uint64_t seed) {
  torch::manual_seed(seed);
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  Case made;
  for (const int64_t n : rows) {
    std::vector<int64_t> sizes = {n, channels};
    sizes.insert(sizes.end(), rest.begin(), rest.end());
    made.x.push_back((at::randn(sizes, wide) * 2 + 3).to(type));
    made.z.push_back(at::randn(sizes, wide).to(type));
    made.dy.push_back(at::randn(sizes, wide).to(type));
  }
  made.gamma = at::rand({channels}, wide) + 0.5;
  made.beta = at::randn({channels}, wide);
  made.running_mean = at::randn({channels}, wide) + 3;
  made.running_var = at::rand({channels}, wide) * 4 + 1;
  return made;
}

Layer MakeLayer(int64_t dims, const LayerConfig& config, const Case& values) {
  Layer layer = WrapFor(dims, config, values.gamma.numel());
  layer.module->to(values.gamma.scalar_type());
  layer.module->train(!config.eval);
  const torch::NoGradGuard no_grad;
  auto parameters = layer.module->named_parameters();
  if (config.affine) {
    parameters["weight"].copy_(values.gamma);
    parameters["bias"].copy_(values.beta);
    parameters["weight"].set_requires_grad(!config.frozen_affine);
    parameters["bias"].set_requires_grad(!config.frozen_affine);
  }
  if (config.track) {
    auto buffers = layer.module->named_buffers();
    buffers["running_mean"].copy_(values.running_mean);
    buffers["running_var"].copy_(values.running_var);
  }
  return layer;
}

Layer Float64Layer(const LayerConfig& config, const Case& values) {
  Case wide = values;
  for (at::Tensor* one :
       {&wide.gamma, &wide.beta, &wide.running_mean, &wide.running_var}) {
    *one = one->to(at::kDouble);
  }
  return MakeLayer(values.x[0].dim(), config, wide);
}

std::vector<Outcome> RunCohort(const LayerConfig& config, const Case& values,
                               const kernels::Backend& backend) {
  const size_t workers = values.x.size();
  ThreadRendezvous rendezvous(workers);
  std::vector<Outcome> outcomes(workers);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      const Layer layer = MakeLayer(values.x[rank].dim(), config, values);
      const auto binding = BatchNormBinding::Make(*layer.module);
      NotingRendezvous noting(&rendezvous.OfRank(rank));
      StepContext step{.rendezvous = &noting, .backend = &backend};
      const BatchNormScope scope(*binding, &step);
      outcomes[rank] = RunLayer(layer, layer.own, values.x[rank],
                                values.z[rank], values.dy[rank], config.add);
      outcomes[rank].moments = std::move(noting.forward);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Outcome RunJoined(Layer& layer, const LayerConfig& config, const Case& values) {
  return RunLayer(layer, layer.stock, at::cat(values.x).to(at::kDouble),
                  at::cat(values.z).to(at::kDouble),
                  at::cat(values.dy).to(at::kDouble), config.add);
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

void ExpectSame(const std::vector<Outcome>& parts, const Outcome& whole,
                const Case& values, const Tolerance& tolerance) {
  std::vector<at::Tensor> y;
  std::vector<at::Tensor> dx;
  std::vector<at::Tensor> dz;
  at::Tensor dgamma;
  at::Tensor dbeta;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Outcome& part = parts[rank];
    EXPECT_EQ(part.y.strides(), values.x[rank].strides());
    EXPECT_EQ(part.dx.strides(), values.x[rank].strides());
    EXPECT_EQ(part.y.scalar_type(), values.x[rank].scalar_type());
    EXPECT_EQ(part.dx.scalar_type(), values.x[rank].scalar_type());
    y.push_back(part.y);
    dx.push_back(part.dx);
    if (part.dz.defined()) dz.push_back(part.dz);
    // Local on purpose: the push adds them up over the ranks.
    AddTo(dgamma, part.dgamma);
    AddTo(dbeta, part.dbeta);
  }
  ExpectClose("y", at::cat(y), whole.y, tolerance.tensors);
  ExpectClose("dx", at::cat(dx), whole.dx, tolerance.tensors);
  ExpectClose("dz", dz.empty() ? at::Tensor() : at::cat(dz), whole.dz,
              tolerance.tensors);
  ExpectClose("dgamma", dgamma, whole.dgamma, tolerance.parameters);
  ExpectClose("dbeta", dbeta, whole.dbeta, tolerance.parameters);
}

void ExpectEqualsJoinedBatch(const LayerConfig& config, const Case& values,
                             const kernels::Backend& backend,
                             const Tolerance& tolerance) {
  const std::vector<Outcome> parts = RunCohort(config, values, backend);
  Layer layer = Float64Layer(config, values);
  ExpectSame(parts, RunJoined(layer, config, values), values, tolerance);
}

}  // namespace cohort
