#include "worker/train/weight_transfer.h"

#include <torch/torch.h>

#include <cstring>
#include <utility>

#include "common/status_macros.h"
#include "kernels/cuda/cuda_kernels.h"

namespace cohort {
namespace {

constexpr int64_t kFloatBytes = 4;
// A partition with more slices is packed by one kernel: each copy takes a few
// microseconds of host time, however small it is.
constexpr size_t kCopiesMax = 4;

// A slice on the device, and its place in the partition.
using Segments = std::vector<kernels::cuda::PackSegment>;

// Copies slices into the packed partition to push, in the copy lane.
absl::Status CopyOut(Accelerator& accelerator, const Segments& segments,
                     float* packed) {
  if (segments.size() > kCopiesMax) {
    return accelerator.Pack(Lane::kCopy, segments, packed);
  }
  for (const kernels::cuda::PackSegment& segment : segments) {
    COHORT_RETURN_IF_ERROR(
        accelerator.Copy(Lane::kCopy, packed + segment.offset, segment.tensor,
                         segment.count * kFloatBytes));
  }
  return absl::OkStatus();
}

// Copies a packed partition that was pulled into its slices.
absl::Status CopyIn(Accelerator& accelerator, const float* packed,
                    const Segments& segments) {
  if (segments.size() > kCopiesMax) {
    return accelerator.Unpack(Lane::kCopy, packed, segments);
  }
  for (const kernels::cuda::PackSegment& segment : segments) {
    COHORT_RETURN_IF_ERROR(accelerator.Copy(Lane::kCopy, segment.tensor,
                                            packed + segment.offset,
                                            segment.count * kFloatBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelMemory>> WeightTransfer::Make(
    const Compute& compute, std::vector<at::Tensor> parameters) {
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<LaneEvent> computed,
                          compute.accelerator->NewEvent());
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<LaneEvent> copied,
                          compute.accelerator->NewEvent());
  return std::unique_ptr<ModelMemory>(new WeightTransfer(
      compute, std::move(parameters), std::move(computed), std::move(copied)));
}

WeightTransfer::WeightTransfer(const Compute& compute,
                               std::vector<at::Tensor> parameters,
                               std::unique_ptr<LaneEvent> computed,
                               std::unique_ptr<LaneEvent> copied)
    : accelerator_(*compute.accelerator),
      pinned_(*compute.pinned),
      parameters_(std::move(parameters)),
      computed_(std::move(computed)),
      copied_(std::move(copied)) {}

WeightTransfer::~WeightTransfer() { Drop(); }

absl::Status WeightTransfer::CopyAfterCompute() {
  COHORT_RETURN_IF_ERROR(accelerator_.Record(Lane::kCompute, *computed_));
  return accelerator_.WaitFor(Lane::kCopy, *computed_);
}

absl::Status WeightTransfer::Fetch(int32_t partition) {
  const Partition& shape = partitions()[static_cast<size_t>(partition)];
  Pending pending{.partition = partition};
  COHORT_ASSIGN_OR_RETURN(pending.block,
                          pinned_.Take(shape.elements * kFloatBytes));
  auto* const packed = pending.block->as<float>();
  Segments segments;
  int64_t offset = 0;
  for (size_t i = 0; i < shape.slices.size(); ++i) {
    const Slice& slice = shape.slices[i];
    const at::Tensor& grad =
        parameters_[static_cast<size_t>(slice.parameter)].grad();
    if (grad.defined()) {
      pending.sources.push_back(grad.contiguous());
      segments.push_back(
          {.tensor = pending.sources.back().data_ptr<float>() + slice.offset,
           .count = slice.count,
           .offset = offset});
    } else {
      pending.absent_slices.push_back(static_cast<int32_t>(i));
      std::memset(packed + offset, 0,
                  static_cast<size_t>(slice.count * kFloatBytes));
    }
    offset += slice.count;
  }
  COHORT_RETURN_IF_ERROR(CopyAfterCompute());
  COHORT_RETURN_IF_ERROR(CopyOut(accelerator_, segments, packed));
  COHORT_RETURN_IF_ERROR(pinned_.MarkUse(Lane::kCopy, *pending.block));
  pending_.push_back(std::move(pending));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ModelMemory::Gradient>> WeightTransfer::Take(
    bool wait) {
  if (pending_.empty()) return std::optional<Gradient>();
  Pending& first = pending_.front();
  if (wait) {
    COHORT_RETURN_IF_ERROR(accelerator_.Await(first.block->event()));
  } else {
    COHORT_ASSIGN_OR_RETURN(const bool there,
                            accelerator_.HasHappened(first.block->event()));
    if (!there) return std::optional<Gradient>();
  }
  const int64_t bytes =
      partitions()[static_cast<size_t>(first.partition)].elements * kFloatBytes;
  Gradient fetched{.partition = first.partition};
  fetched.bytes.Append(absl::MakeConstSpan(first.block->as<std::byte>(),
                                           static_cast<size_t>(bytes)),
                       first.block);
  fetched.absent_slices = std::move(first.absent_slices);
  pending_.pop_front();
  return std::make_optional(std::move(fetched));
}

void WeightTransfer::Drop() {
  for (const Pending& pending : pending_) {
    // If the wait fails, the device no longer copies anything.
    accelerator_.Await(pending.block->event()).IgnoreError();
  }
  pending_.clear();
}

absl::Status WeightTransfer::Load(absl::Span<const ByteRope> ropes) {
  COHORT_RETURN_IF_ERROR(CheckSizes(ropes));
  COHORT_RETURN_IF_ERROR(CopyAfterCompute());
  for (size_t p = 0; p < ropes.size(); ++p) {
    if (ropes[p].size_bytes() == 0) continue;
    const Partition& shape = partitions()[p];
    COHORT_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedBlock> block,
                            pinned_.Take(ropes[p].size_bytes()));
    ropes[p].CopyTo(absl::MakeSpan(block->as<std::byte>(),
                                   static_cast<size_t>(ropes[p].size_bytes())));
    Segments segments;
    int64_t offset = 0;
    for (const Slice& slice : shape.slices) {
      const at::Tensor& parameter =
          parameters_[static_cast<size_t>(slice.parameter)];
      segments.push_back({.tensor = parameter.data_ptr<float>() + slice.offset,
                          .count = slice.count,
                          .offset = offset});
      offset += slice.count;
    }
    COHORT_RETURN_IF_ERROR(CopyIn(accelerator_, block->as<float>(), segments));
    COHORT_RETURN_IF_ERROR(pinned_.MarkUse(Lane::kCopy, *block));
  }
  COHORT_RETURN_IF_ERROR(accelerator_.Record(Lane::kCopy, *copied_));
  return accelerator_.WaitFor(Lane::kCompute, *copied_);
}

}  // namespace cohort
