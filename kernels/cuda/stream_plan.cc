#include "kernels/cuda/stream_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "kernels/cuda/checks.h"
#include "kernels/cuda/tuning.h"

namespace cohort::kernels::cuda {
namespace {

// As kElementsMax in checks.cc: sums of offsets and sizes in bytes stay far
// below 2^63.
constexpr int64_t kRunElementsMax = int64_t{1} << 40;
// CUDA's limit on the first extent of a grid.
constexpr int64_t kLaunchBlocksMax = std::numeric_limits<int32_t>::max();

absl::Status CheckSegment(const PackSegment& segment) {
  if (segment.count < 0 || segment.count > kRunElementsMax ||
      segment.offset < 0 || segment.offset > kRunElementsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment of ", segment.count, " elements at ",
                     segment.offset, ", want both between 0 and 2^40"));
  }
  if (segment.count == 0) return absl::OkStatus();
  if (segment.tensor == nullptr) {
    return absl::InvalidArgumentError(
        "segment: null, want memory of the device");
  }
  return CheckAligned("segment", segment.tensor, sizeof(float));
}

}  // namespace

absl::StatusOr<std::vector<PackLaunch>> PlanPack(
    absl::Span<const PackSegment> segments, float* packed) {
  COHORT_RETURN_IF_ERROR(CheckAligned("packed", packed, sizeof(float)));
  std::vector<PackLaunch> launches;
  for (const PackSegment& segment : segments) {
    COHORT_RETURN_IF_ERROR(CheckSegment(segment));
    if (segment.count == 0) continue;
    if (packed == nullptr) {
      return absl::InvalidArgumentError(
          "packed: null, want memory of the device");
    }
    const int64_t blocks =
        (segment.count + kPackBlockElements - 1) / kPackBlockElements;
    // The table of segments travels as an argument of the kernel, so its length
    // is fixed; more segments take another launch.
    if (launches.empty() || launches.back().args.segments == kSegmentsMax ||
        launches.back().plan.blocks + blocks > kLaunchBlocksMax) {
      launches.emplace_back();
    }
    PackLaunch& launch = launches.back();
    launch.args.table[launch.args.segments] = {
        .tensor = segment.tensor,
        .packed = packed + segment.offset,
        .count = segment.count,
        .first_block = launch.plan.blocks};
    ++launch.args.segments;
    launch.plan.blocks += blocks;
  }
  return launches;
}

std::vector<PackedRange> PackedRanges(absl::Span<const PackSegment> segments) {
  std::vector<PackedRange> all;
  all.reserve(segments.size());
  for (const PackSegment& segment : segments) {
    if (segment.count > 0) all.push_back({segment.offset, segment.count});
  }
  std::sort(all.begin(), all.end(),
            [](const PackedRange& a, const PackedRange& b) {
              return a.offset < b.offset;
            });
  std::vector<PackedRange> ranges;
  for (const PackedRange& next : all) {
    if (ranges.empty() ||
        next.offset > ranges.back().offset + ranges.back().count) {
      ranges.push_back(next);
      continue;
    }
    PackedRange& last = ranges.back();
    last.count = std::max(last.count, next.offset + next.count - last.offset);
  }
  return ranges;
}

}  // namespace cohort::kernels::cuda
