#include "worker/train/model_weights.h"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int64_t kFloatBytes = 4;

void AppendZeros(int64_t bytes, ByteRope& rope) {
  auto zeros = std::make_shared<const std::vector<std::byte>>(
      static_cast<size_t>(bytes));
  rope.Append(absl::MakeConstSpan(*zeros), zeros);
}

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

void ModelWeights::SetPartitions(std::vector<Partition> partitions) {
  partitions_ = std::move(partitions);
}

ModelWeights::Gradient ModelWeights::GradientOf(int32_t partition) const {
  Gradient gradient;
  const Partition& shape = partitions_[static_cast<size_t>(partition)];
  for (size_t i = 0; i < shape.slices.size(); ++i) {
    const Slice& slice = shape.slices[i];
    const at::Tensor& grad =
        parameters_[static_cast<size_t>(slice.parameter)].grad();
    if (!grad.defined()) {
      gradient.absent_slices.push_back(static_cast<int32_t>(i));
      AppendZeros(slice.count * kFloatBytes, gradient.bytes);
      continue;
    }
    auto owner = std::make_shared<const at::Tensor>(grad.contiguous());
    const float* from = owner->data_ptr<float>() + slice.offset;
    gradient.bytes.Append(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(from),
                            static_cast<size_t>(slice.count * kFloatBytes)),
        owner);
  }
  return gradient;
}

void ModelWeights::ClearGradients() {
  for (at::Tensor& tensor : parameters_) tensor.mutable_grad().reset();
}

absl::Status ModelWeights::CheckSizes(absl::Span<const ByteRope> ropes) const {
  if (ropes.size() != partitions_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights: got ", ropes.size(), " partitions, want ",
                     partitions_.size()));
  }
  for (size_t p = 0; p < ropes.size(); ++p) {
    const int64_t wanted = partitions_[p].elements * kFloatBytes;
    if (ropes[p].size_bytes() == 0 || ropes[p].size_bytes() == wanted) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("weights of partition ", p, ": got ",
                     ropes[p].size_bytes(), " bytes, want ", wanted));
  }
  return absl::OkStatus();
}

absl::Status ModelWeights::Load(absl::Span<const ByteRope> ropes) {
  COHORT_RETURN_IF_ERROR(CheckSizes(ropes));
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < ropes.size(); ++p) {
    if (ropes[p].size_bytes() == 0) continue;
    RopeReader reader(ropes[p]);
    for (const Slice& slice : partitions_[p].slices) {
      float* to =
          parameters_[static_cast<size_t>(slice.parameter)].data_ptr<float>() +
          slice.offset;
      reader.Read(to, slice.count * kFloatBytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace cohort
