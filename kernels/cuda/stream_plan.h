#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fold_kernel.h"
#include "kernels/cuda/pack_kernel.h"
#include "kernels/data_type.h"
#include "kernels/optimizer_step.h"

// From calls that stream through memory to launches; checks included.
namespace cohort::kernels::cuda {

struct FoldLaunch {
  FoldArgs args;
  FoldPlan plan;
};

// Requires run.count > 0.
absl::StatusOr<FoldLaunch> PlanFold(const SgdStep& step, const SgdRun& run,
                                    int32_t* nonfinite,
                                    int32_t multiprocessors);

struct PackLaunch {
  PackArgs args;
  PackPlan plan;
};

// As many launches as the segments need; none for none. `packed` is read or
// written, as is each tensor.
absl::StatusOr<std::vector<PackLaunch>> PlanPack(
    DataType type, absl::Span<const PackSegment> segments, float* packed);

// Elements [offset, offset + count) of a packed buffer.
struct PackedRange {
  int64_t offset = 0;
  int64_t count = 0;
};

// The elements that segments take up, in order, adjacent ones as one range.
std::vector<PackedRange> PackedRanges(absl::Span<const PackSegment> segments);

}  // namespace cohort::kernels::cuda
