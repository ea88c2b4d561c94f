#include "server/checkpoint/model_tensors.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int kResultMode = 0644;
constexpr int64_t kFloatBytes = 4;

// Copies the rope's bytes from `offset` on until `out` is full.
void CopyRange(const ByteRope& rope, int64_t offset,
               absl::Span<std::byte> out) {
  for (const ByteRope::Piece& piece : rope.pieces()) {
    const auto size = static_cast<int64_t>(piece.bytes.size());
    if (offset >= size) {
      offset -= size;
      continue;
    }
    const size_t count =
        std::min(out.size(), static_cast<size_t>(size - offset));
    std::copy_n(piece.bytes.begin() + offset, count, out.begin());
    out.remove_prefix(count);
    offset = 0;
    if (out.empty()) return;
  }
  COHORT_CHECK(out.empty(),
               absl::StrCat("the tensor ends ", out.size(), " bytes early"));
}

ByteRope Float32Rope(const std::vector<double>& values) {
  std::vector<float> narrow(values.begin(), values.end());
  return ByteRope::Copy(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(narrow.data()),
                          narrow.size() * sizeof(float)));
}

ByteRope Int64Rope(int64_t value) {
  return ByteRope::Copy(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(&value), sizeof(value)));
}

}  // namespace

std::vector<ByteRope> ParameterRopes(const RegisteredModel& model,
                                     const std::vector<SharedFloats>& buffers) {
  std::vector<ByteRope> ropes(model.layout.parameters.size());
  for (size_t p = 0; p < model.partitions.size(); ++p) {
    if (buffers[p] == nullptr) continue;
    absl::Span<const float> rest = buffers[p]->span();
    for (const Slice& slice : model.partitions[p].slices) {
      const auto count = static_cast<size_t>(slice.count);
      ropes[static_cast<size_t>(slice.parameter)].Append(
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(rest.data()),
                              count * sizeof(float)),
          buffers[p]);
      rest.remove_prefix(count);
    }
  }
  return ropes;
}

std::vector<SharedFloats> PartitionBuffers(const RegisteredModel& model,
                                           const std::vector<ByteRope>& ropes) {
  std::vector<SharedFloats> buffers;
  for (const Partition& partition : model.partitions) {
    const bool present = std::all_of(
        partition.slices.begin(), partition.slices.end(),
        [&ropes](const Slice& slice) {
          return ropes[static_cast<size_t>(slice.parameter)].size_bytes() > 0;
        });
    // Allocate only for tensors that are present: their size was checked, the
    // layout's was not.
    if (!present) {
      buffers.push_back(nullptr);
      continue;
    }
    auto buffer = std::make_shared<FloatBuffer>(partition.elements);
    auto* to = reinterpret_cast<std::byte*>(buffer->data());
    for (const Slice& slice : partition.slices) {
      const ByteRope& from = ropes[static_cast<size_t>(slice.parameter)];
      const size_t bytes = static_cast<size_t>(slice.count) * sizeof(float);
      CopyRange(from, slice.offset * kFloatBytes, absl::MakeSpan(to, bytes));
      to += bytes;
    }
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

SafetensorsContent StateDict(const RegisteredModel& model,
                             const ModelSnapshot& snapshot) {
  SafetensorsContent content;
  content.metadata = {{"format", "pt"},
                      {"version", absl::StrCat(snapshot.version.value())}};
  const std::vector<ByteRope> weights = ParameterRopes(model, snapshot.weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    const ParameterSpec& p = model.layout.parameters[i];
    content.tensors.push_back(
        {.name = p.name, .shape = p.shape, .bytes = weights[i]});
  }
  for (size_t i = 0; i < model.layout.batch_norms.size(); ++i) {
    const BatchNormSpec& bn = model.layout.batch_norms[i];
    if (!bn.track_statistics) continue;
    const LayerStatistics& s = snapshot.statistics->front().layers[i];
    content.tensors.push_back({.name = absl::StrCat(bn.name, ".running_mean"),
                               .shape = {bn.channels},
                               .bytes = Float32Rope(s.mean)});
    content.tensors.push_back({.name = absl::StrCat(bn.name, ".running_var"),
                               .shape = {bn.channels},
                               .bytes = Float32Rope(s.variance)});
    content.tensors.push_back(
        {.name = absl::StrCat(bn.name, ".num_batches_tracked"),
         .type = TensorType::kInt64,
         .bytes = Int64Rope(s.num_batches_tracked)});
  }
  return content;
}

absl::Status WriteModel(FileSystem& files, const std::string& path,
                        const RegisteredModel& model,
                        const ModelSnapshot& snapshot) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> bytes,
                          EncodeSafetensors(StateDict(model, snapshot)));
  return WriteFileAtomically(files, path, kResultMode, bytes);
}

}  // namespace cohort
