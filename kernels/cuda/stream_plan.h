#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/pack_kernel.h"

// From calls that stream through memory to launches; checks included.
namespace cohort::kernels::cuda {

struct PackLaunch {
  PackArgs args;
  PackPlan plan;
};

// As many launches as the segments need; none for none. `packed` is read or
// written, as is each tensor.
absl::StatusOr<std::vector<PackLaunch>> PlanPack(
    absl::Span<const PackSegment> segments, float* packed);

// Elements [offset, offset + count) of a packed buffer.
struct PackedRange {
  int64_t offset = 0;
  int64_t count = 0;
};

// The elements that segments take up, in order, adjacent ones as one range.
std::vector<PackedRange> PackedRanges(absl::Span<const PackSegment> segments);

}  // namespace cohort::kernels::cuda
