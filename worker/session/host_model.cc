#include "worker/session/host_model.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int64_t kFloatBytes = 4;

void AppendZeros(size_t bytes, ByteRope& rope) {
  auto zeros = std::make_shared<const std::vector<std::byte>>(bytes);
  rope.Append(absl::MakeConstSpan(*zeros), zeros);
}

}  // namespace

HostModel::HostModel(std::vector<absl::Span<float>> parameters,
                     GradientOf gradient_of)
    : parameters_(std::move(parameters)),
      gradient_of_(std::move(gradient_of)) {}

std::vector<absl::Span<const float>> HostModel::Values() const {
  return {parameters_.begin(), parameters_.end()};
}

absl::Status HostModel::Fetch(int32_t partition) {
  const std::vector<Slice>& slices =
      partitions()[static_cast<size_t>(partition)].slices;
  std::vector<ParameterGradient> parts;
  for (const Slice& slice : slices) {
    parts.push_back(gradient_of_(static_cast<size_t>(slice.parameter)));
  }
  // A partition without any gradient, such as one that the training program has
  // frozen, sends no bytes.
  const bool none = std::all_of(
      parts.begin(), parts.end(),
      [](const ParameterGradient& part) { return part.data == nullptr; });
  Gradient& gradient = fetched_.emplace_back(Gradient{.partition = partition});
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto bytes = static_cast<size_t>(slices[i].count * kFloatBytes);
    if (parts[i].data == nullptr) {
      gradient.absent_slices.push_back(static_cast<int32_t>(i));
      if (!none) AppendZeros(bytes, gradient.bytes);
      continue;
    }
    const float* from = parts[i].data + slices[i].offset;
    gradient.bytes.Append(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(from), bytes),
        std::move(parts[i].owner));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ModelMemory::Gradient>> HostModel::Take(
    bool /*wait*/) {
  if (fetched_.empty()) return std::optional<Gradient>();
  std::optional<Gradient> first = std::move(fetched_.front());
  fetched_.pop_front();
  return first;
}

absl::Status HostModel::Load(absl::Span<const ByteRope> weights) {
  COHORT_RETURN_IF_ERROR(CheckSizes(weights));
  for (size_t p = 0; p < weights.size(); ++p) {
    if (weights[p].size_bytes() == 0) continue;
    RopeReader reader(weights[p]);
    for (const Slice& slice : partitions()[p].slices) {
      reader.Read(parameters_[static_cast<size_t>(slice.parameter)].data() +
                      slice.offset,
                  slice.count * kFloatBytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace cohort
