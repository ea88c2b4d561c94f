#include "worker/train/model_weights.h"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/session/host_model.h"
#include "worker/train/weight_transfer.h"

namespace cohort {
namespace {

// Such as "fc.bias", "bias" and, in a recurrent layer, "gru.bias_ih_l0".
bool IsBias(absl::string_view name) {
  return absl::StartsWith(name.substr(name.rfind('.') + 1), "bias");
}

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::Make(torch::nn::Module& model,
                                                const BatchNormBinding& binding,
                                                at::Device device) {
  ModelWeights weights;
  weights.layout_.batch_norms.assign(binding.layers().begin(),
                                     binding.layers().end());
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    // A tensor under two names has one gradient; pushed twice it would be
    // applied twice.
    if (std::any_of(
            weights.parameters_.begin(), weights.parameters_.end(),
            [&](const at::Tensor& seen) { return seen.is_same(tensor); })) {
      continue;
    }
    if (tensor.scalar_type() != at::kFloat || !tensor.is_contiguous() ||
        tensor.device() != device) {
      return absl::InvalidArgumentError(
          absl::StrCat(item.key(), ": want a contiguous float32 parameter on ",
                       device.is_cpu() ? "the CPU" : device.str()));
    }
    weights.layout_.parameters.push_back(
        {.name = item.key(),
         .shape = tensor.sizes().vec(),
         .trainable = tensor.requires_grad(),
         .decay_exempt = binding.IsScaleOrShift(tensor) || IsBias(item.key())});
    weights.parameters_.push_back(tensor);
    weights.on_host_.push_back(tensor.detach().cpu());
  }
  return weights;
}

std::vector<absl::Span<const float>> ModelWeights::Values() const {
  std::vector<absl::Span<const float>> values;
  for (const at::Tensor& tensor : on_host_) {
    values.push_back(absl::MakeConstSpan(tensor.data_ptr<float>(),
                                         static_cast<size_t>(tensor.numel())));
  }
  return values;
}

absl::StatusOr<std::unique_ptr<ModelMemory>> ModelWeights::MakeMemory(
    const Compute& compute) const {
  if (compute.accelerator != nullptr) {
    return WeightTransfer::Make(compute, parameters_);
  }
  std::vector<absl::Span<float>> elements;
  for (const at::Tensor& tensor : parameters_) {
    elements.emplace_back(tensor.data_ptr<float>(),
                          static_cast<size_t>(tensor.numel()));
  }
  // Autograd's memory, which is kept alive.
  const auto gradient_of = [parameters = parameters_](size_t parameter) {
    HostModel::ParameterGradient gradient;
    const at::Tensor& grad = parameters[parameter].grad();
    if (!grad.defined()) return gradient;
    auto owner = std::make_shared<const at::Tensor>(grad.contiguous());
    gradient.data = owner->data_ptr<float>();
    gradient.owner = std::move(owner);
    return gradient;
  };
  return std::make_unique<HostModel>(std::move(elements), gradient_of);
}

void ModelWeights::ClearGradients() {
  for (at::Tensor& tensor : parameters_) tensor.mutable_grad().reset();
}

}  // namespace cohort
