#include "worker/batch_norm/binding.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/batch_norm/call.h"
#include "worker/batch_norm/override.h"

namespace cohort {
namespace {

void Overwrite(at::Tensor& tensor, const std::vector<double>& values) {
  const torch::NoGradGuard no_grad;
  tensor.copy_(torch::tensor(values, torch::kDouble));
}

}  // namespace

absl::StatusOr<BatchNormBinding> BatchNormBinding::Make(
    torch::nn::Module& model, const BindingOptions& options) {
  InstallBatchNormKernel();
  BatchNormBinding binding;
  // A model that is itself a single layer has no path to name it by.
  auto add = [&binding, &options](const std::string& name,
                                  torch::nn::Module& module) {
    COHORT_RETURN_IF_ERROR(binding.AddIfBatchNorm<torch::nn::BatchNorm1dImpl>(
        name, module, options.device));
    COHORT_RETURN_IF_ERROR(binding.AddIfBatchNorm<torch::nn::BatchNorm2dImpl>(
        name, module, options.device));
    return binding.AddIfBatchNorm<torch::nn::BatchNorm3dImpl>(name, module,
                                                              options.device);
  };
  COHORT_RETURN_IF_ERROR(add("model", model));
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    COHORT_RETURN_IF_ERROR(add(item.key(), *item.value()));
  }
  for (BatchNormSpec& spec : binding.specs_) {
    spec.convention = options.convention;
  }
  for (const std::string& pattern : options.frozen_statistics) {
    COHORT_RETURN_IF_ERROR(binding.Freeze(pattern));
  }
  return binding;
}

template <typename BatchNorm>
absl::Status BatchNormBinding::AddIfBatchNorm(const std::string& name,
                                              torch::nn::Module& module,
                                              at::Device device) {
  auto* norm = module.as<BatchNorm>();
  if (norm == nullptr) return absl::OkStatus();
  const auto& options = norm->options;
  BatchNormSpec spec;
  spec.name = name;
  spec.channels = options.num_features();
  spec.epsilon = options.eps();
  spec.momentum = std::nullopt;
  if (options.momentum().has_value()) spec.momentum = *options.momentum();
  spec.affine = options.affine();
  spec.track_statistics = options.track_running_stats();
  if (!norm->weight.defined() && !norm->running_mean.defined()) {
    // Assigned, not registered: it appears in no list of parameters and in no
    // state dict.
    norm->weight = torch::ones({spec.channels}, device);
  }
  return Add(std::move(spec),
             {.weight = norm->weight,
              .bias = norm->bias,
              .running_mean = norm->running_mean,
              .running_var = norm->running_var,
              .num_batches_tracked = norm->num_batches_tracked});
}

absl::Status BatchNormBinding::Add(BatchNormSpec spec, Layer layer) {
  const at::Tensor& identity =
      layer.running_mean.defined() ? layer.running_mean : layer.weight;
  const auto index = static_cast<int32_t>(specs_.size());
  const auto [entry, inserted] =
      layer_of_.try_emplace(identity.unsafeGetTensorImpl(), index);
  if (!inserted) {
    const Layer& known = layers_[static_cast<size_t>(entry->second)];
    const BatchNormSpec& other = specs_[static_cast<size_t>(entry->second)];
    // The same module under a second name.
    if (known.weight.is_same(layer.weight) && other.epsilon == spec.epsilon &&
        other.momentum == spec.momentum) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, " shares its tensors with ", other.name,
                     ", so their calls cannot be distinguished"));
  }
  specs_.push_back(std::move(spec));
  layers_.push_back(std::move(layer));
  return absl::OkStatus();
}

absl::Status BatchNormBinding::Freeze(const std::string& pattern) {
  absl::string_view beginning = pattern;
  const bool whole = !absl::ConsumeSuffix(&beginning, "*");
  bool found = false;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const BatchNormSpec& spec = specs_[i];
    if (whole ? spec.name != pattern
              : !absl::StartsWith(spec.name, beginning)) {
      continue;
    }
    if (!spec.track_statistics) {
      return absl::InvalidArgumentError(
          absl::StrCat("frozen statistics: got ", pattern, ", but ", spec.name,
                       " has no moving statistics"));
    }
    layers_[i].frozen = true;
    found = true;
  }
  if (found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "frozen statistics: got ", pattern,
      specs_.empty() ? ", but the model has no batch-norm layer"
                     : absl::StrCat(", want a batch-norm layer such as ",
                                    specs_[0].name)));
}

bool BatchNormBinding::HasFrozen() const {
  return std::any_of(layers_.begin(), layers_.end(),
                     [](const Layer& layer) { return layer.frozen; });
}

std::optional<int32_t> BatchNormBinding::LayerOf(
    const at::Tensor& weight, const at::Tensor& running_mean) const {
  const at::Tensor& identity = running_mean.defined() ? running_mean : weight;
  if (!identity.defined()) return std::nullopt;
  const auto entry = layer_of_.find(identity.unsafeGetTensorImpl());
  if (entry == layer_of_.end()) return std::nullopt;
  return entry->second;
}

bool BatchNormBinding::IsScaleOrShift(const at::Tensor& parameter) const {
  for (const Layer& layer : layers_) {
    if (parameter.is_same(layer.weight) || parameter.is_same(layer.bias)) {
      return true;
    }
  }
  return false;
}

std::vector<LayerStatistics> BatchNormBinding::Statistics() const {
  std::vector<LayerStatistics> all;
  all.reserve(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    LayerStatistics& one = all.emplace_back();
    if (specs_[i].track_statistics) {
      one.mean = ToDoubles(layer.running_mean);
      one.variance = ToDoubles(layer.running_var);
      one.num_batches_tracked = layer.num_batches_tracked.item<int64_t>();
    } else {
      one.mean.assign(static_cast<size_t>(specs_[i].channels), 0.0);
      one.variance.assign(static_cast<size_t>(specs_[i].channels), 1.0);
    }
  }
  return all;
}

absl::Status BatchNormBinding::LoadStatistics(
    absl::Span<const LayerStatistics> statistics) {
  if (statistics.size() != layers_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("moving statistics: got ", statistics.size(),
                     " layers, want ", layers_.size()));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto channels = static_cast<size_t>(specs_[i].channels);
    const LayerStatistics& one = statistics[i];
    if (one.mean.size() != channels || one.variance.size() != channels) {
      return absl::InvalidArgumentError(absl::StrCat(
          specs_[i].name, ": got statistics of ", one.mean.size(), " and ",
          one.variance.size(), " channels, want ", channels));
    }
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!specs_[i].track_statistics) continue;
    Overwrite(layers_[i].running_mean, statistics[i].mean);
    Overwrite(layers_[i].running_var, statistics[i].variance);
    layers_[i].num_batches_tracked.fill_(statistics[i].num_batches_tracked);
  }
  return absl::OkStatus();
}

}  // namespace cohort
