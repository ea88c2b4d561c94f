// Compares the server's optimizers with LibTorch's, in float64.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/core/optimizer/slots.h"
#include "tests/core/small_run.h"
#include "tests/kernels/reference/optimizer_oracle.h"

namespace cohort {
namespace {

constexpr int kSteps = 20;
constexpr double kRate = 0.05;
constexpr double kDecay = 0.05;

// By parameter, in its shape.
std::vector<at::Tensor> Tensors(const ModelLayout& layout,
                                const ParameterValues& values) {
  std::vector<at::Tensor> tensors;
  for (size_t k = 0; k < values.size(); ++k) {
    tensors.push_back(torch::tensor(values[k])
                          .to(torch::kDouble)
                          .view(layout.parameters[k].shape));
  }
  return tensors;
}

// A group for each parameter, with its rate and its decay.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> Groups(
    const ModelLayout& layout, const std::vector<at::Tensor>& parameters,
    const Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const ParameterSpec& spec = layout.parameters[k];
    if (!spec.trainable) continue;
    Options own = options;
    own.lr(kRate * spec.rate_multiplier);
    own.weight_decay(spec.decay_exempt ? 0 : kDecay * spec.decay_multiplier);
    groups.emplace_back(std::vector<at::Tensor>{parameters[k]},
                        std::make_unique<Options>(own));
  }
  return groups;
}

// An optimizer here, and the class of LibTorch that it is.
struct Pair {
  kernels::OptimizerCase ours;
  std::function<std::unique_ptr<torch::optim::Optimizer>(
      const ModelLayout&, const std::vector<at::Tensor>&)>
      theirs;
};

template <typename Optimizer, typename Options>
Pair Equals(OptimizerKind kind, const Options& options,
            const OptimizerNumbers& numbers = {}) {
  return {{kind, numbers},
          [options](const ModelLayout& layout,
                    const std::vector<at::Tensor>& parameters) {
            return std::make_unique<Optimizer>(
                Groups(layout, parameters, options), options);
          }};
}

std::vector<Pair> Pairs() {
  using namespace torch::optim;  // NOLINT: one name each below
  using enum OptimizerKind;
  const auto momentum = [] { return SGDOptions(kRate).momentum(0.9); };
  return {
      Equals<SGD>(kSgd, SGDOptions(kRate)),
      Equals<SGD>(kMomentum, momentum()),
      Equals<SGD>(kNesterov, momentum().nesterov(true)),
      Equals<Adam>(kAdam, AdamOptions(kRate)),
      Equals<AdamW>(kAdamW, AdamWOptions(kRate)),
      Equals<SGD>(kDampened, momentum().dampening(0.5), {.dampening = 0.5}),
      Equals<AdamW>(kAdamW, AdamWOptions(kRate).amsgrad(true),
                    {.adam_amsgrad = true}),
      Equals<RMSprop>(kRmsProp, RMSpropOptions(kRate)),
      Equals<RMSprop>(kRmsProp,
                      RMSpropOptions(kRate).momentum(0.5).centered(true),
                      {.rmsprop_momentum = 0.5, .rmsprop_centered = true}),
      Equals<Adagrad>(
          kAdagrad,
          AdagradOptions(kRate).lr_decay(0.1).initial_accumulator_value(0.5),
          {.adagrad_lr_decay = 0.1, .adagrad_initial = 0.5})};
}

// Largest difference after kSteps with the same gradients.
double Difference(const Pair& pair, double clip_norm) {
  SmallRun run({.kind = pair.ours.kind,
                .numbers = pair.ours.numbers,
                .weight_decay = kDecay,
                .clip_norm = clip_norm},
               kernels::CpuBackend());
  const std::vector<at::Tensor> parameters =
      Tensors(run.layout(), run.weights());
  const auto optimizer = pair.theirs(run.layout(), parameters);
  std::vector<at::Tensor> trained;
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (run.layout().parameters[k].trainable) trained.push_back(parameters[k]);
  }
  for (uint64_t step = 0; step < kSteps; ++step) {
    const ParameterValues gradient = RandomValues(run.layout(), 300 + step, 1);
    // The mean is the gradient itself.
    run.Apply({gradient}, {.learning_rate = kRate,
                           .loss_weight = SmallRun::kLossReference});
    const std::vector<at::Tensor> gradients = Tensors(run.layout(), gradient);
    for (size_t k = 0; k < parameters.size(); ++k) {
      parameters[k].mutable_grad() = gradients[k];
    }
    if (clip_norm > 0) torch::nn::utils::clip_grad_norm_(trained, clip_norm);
    optimizer->step();
  }
  double largest = 0;
  const std::vector<at::Tensor> seen = Tensors(run.layout(), run.weights());
  for (size_t k = 0; k < seen.size(); ++k) {
    largest =
        std::max(largest, (seen[k] - parameters[k]).abs().max().item<double>());
  }
  return largest;
}

// Each step rounds a dozen float32 values below 4, by 2^-24 each.
constexpr double kTolerance = kSteps * 12 * 4 * 0x1p-24;

// LibTorch adds 1e-6 to the norm that it divides by, which is about 50 here.
TEST(OptimizerParityTest, EqualsLibTorchs) {
  for (const Pair& pair : Pairs()) {
    for (double clip_norm : {0.0, 5.0}) {
      EXPECT_LT(Difference(pair, clip_norm), kTolerance)
          << pair.ours.name() << ", " << clip_norm;
    }
  }
}

}  // namespace
}  // namespace cohort
