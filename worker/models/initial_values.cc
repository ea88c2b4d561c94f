#include "worker/models/initial_values.h"

#include <torch/torch.h>

#include <cmath>

#include "common/permutation.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

// Uniform in [-bound, bound), from a separate generator: LibTorch's is shared
// by the whole process, and its stream differs between releases.
void FillUniform(const at::Tensor& tensor, double bound, SplitMix64& random) {
  if (!tensor.defined()) return;
  at::Tensor flat = tensor.view(-1);
  auto* values = flat.data_ptr<float>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    values[i] = static_cast<float>(bound * (2 * random.Uniform() - 1));
  }
}

// Number of inputs of one output; `axis` is the axis of the outputs.
double FanIn(const at::Tensor& weight, int64_t axis) {
  return static_cast<double>(weight.numel()) /
         static_cast<double>(weight.size(axis));
}

void SetConvolution(const nn::Conv2dImpl& conv, SplitMix64& random) {
  const double square = conv.bias.defined() ? 1.0 : 6.0;
  const double bound = std::sqrt(square / FanIn(conv.weight, 0));
  FillUniform(conv.weight, bound, random);
  FillUniform(conv.bias, bound, random);
}

}  // namespace

void SetInitialValues(Model& model, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  uint64_t index = 0;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    SplitMix64 random(MixSeed(seed, 0x1417, index++));
    if (auto* conv = module->as<nn::Conv2d>()) {
      SetConvolution(*conv, random);
    } else if (auto* up = module->as<nn::ConvTranspose2d>()) {
      const double bound = 1.0 / std::sqrt(FanIn(up->weight, 0));
      FillUniform(up->weight, bound, random);
      FillUniform(up->bias, bound, random);
    } else if (auto* linear = module->as<nn::Linear>()) {
      const double bound = 1.0 / std::sqrt(FanIn(linear->weight, 0));
      FillUniform(linear->weight, bound, random);
      FillUniform(linear->bias, bound, random);
    }
  }
}

}  // namespace cohort
