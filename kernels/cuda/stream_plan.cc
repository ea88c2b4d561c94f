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
#include "kernels/cuda/plan.h"
#include "kernels/cuda/tuning.h"

namespace cohort::kernels::cuda {
namespace {

constexpr int64_t kRunElementsMax = int64_t{1} << 40;
constexpr int64_t kLaunchBlocksMax = std::numeric_limits<int32_t>::max();

absl::Status CheckFold(const SgdStep& step, const SgdRun& run,
                       const int32_t* nonfinite, int32_t multiprocessors) {
  const auto contributors = static_cast<int64_t>(run.gradients.size());
  if (contributors > kContributorsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("fold of ", contributors, " contributors, want at most ",
                     kContributorsMax));
  }
  if (run.count < 0 || run.count > kRunElementsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fold of ", run.count, " elements, want between 0 and 2^40"));
  }
  if (multiprocessors < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue: got ", multiprocessors,
                     " multiprocessors, want those that OpenDevice found"));
  }
  std::vector<NamedTensor> pointers = {{"weights_in", run.weights_in},
                                       {"weights_out", run.weights_out},
                                       {"nonfinite", nonfinite}};
  if (step.momentum != 0) {
    pointers.push_back({"velocity_in", run.velocity_in});
    pointers.push_back({"velocity_out", run.velocity_out});
  }
  for (const std::byte* gradient : run.gradients) {
    pointers.push_back({"gradient", gradient});
  }
  for (const NamedTensor& pointer : pointers) {
    if (pointer.memory == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(pointer.name, ": null, want memory of the device"));
    }
    COHORT_RETURN_IF_ERROR(
        CheckAligned(pointer.name, pointer.memory, sizeof(float)));
  }
  return absl::OkStatus();
}

// Vectors only if everything lies at a boundary: partitions do.
int32_t WidthOfFold(const FoldArgs& args) {
  std::vector<const void*> pointers = {args.weights_in, args.weights_out};
  if (args.momentum != 0) {
    pointers.push_back(args.velocity_in);
    pointers.push_back(args.velocity_out);
  }
  pointers.insert(pointers.end(), args.gradients,
                  args.gradients + args.contributors);
  const Access access = WidestAccess(
      pointers.data(), static_cast<int32_t>(pointers.size()), sizeof(float));
  return access.shift == 0 ? access.width : 1;
}

absl::Status CheckSegment(const PackSegment& segment, int64_t element_bytes) {
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
  return CheckAligned("segment", segment.tensor, element_bytes);
}

}  // namespace

absl::StatusOr<FoldLaunch> PlanFold(const SgdStep& step, const SgdRun& run,
                                    int32_t* nonfinite,
                                    int32_t multiprocessors) {
  COHORT_RETURN_IF_ERROR(CheckFold(step, run, nonfinite, multiprocessors));
  FoldLaunch launch;
  FoldArgs& args = launch.args;
  args.gradient_scale = step.gradient_scale;
  args.learning_rate = step.learning_rate;
  args.weight_decay = step.weight_decay;
  args.momentum = step.momentum;
  args.nesterov = step.nesterov;
  args.count = run.count;
  args.weights_in = run.weights_in;
  args.weights_out = run.weights_out;
  args.velocity_in = run.velocity_in;
  args.velocity_out = run.velocity_out;
  args.nonfinite = nonfinite;
  args.contributors = static_cast<int32_t>(run.gradients.size());
  for (int32_t k = 0; k < args.contributors; ++k) {
    args.gradients[k] = reinterpret_cast<const float*>(run.gradients[k]);
  }
  launch.plan.width = WidthOfFold(args);
  const int64_t threads =
      (run.count + launch.plan.width - 1) / launch.plan.width;
  launch.plan.blocks =
      std::min((threads + kStreamThreads - 1) / kStreamThreads,
               int64_t{multiprocessors} * kStreamBlocksPerMultiprocessor);
  return launch;
}

absl::StatusOr<std::vector<PackLaunch>> PlanPack(
    DataType type, absl::Span<const PackSegment> segments, float* packed) {
  COHORT_ASSIGN_OR_RETURN(const int32_t element_bytes, ElementBytes(type));
  COHORT_RETURN_IF_ERROR(CheckAligned("packed", packed, sizeof(float)));
  std::vector<PackLaunch> launches;
  for (const PackSegment& segment : segments) {
    COHORT_RETURN_IF_ERROR(CheckSegment(segment, element_bytes));
    if (segment.count == 0) continue;
    if (packed == nullptr) {
      return absl::InvalidArgumentError(
          "packed: null, want memory of the device");
    }
    const int64_t blocks =
        (segment.count + kPackBlockElements - 1) / kPackBlockElements;
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
