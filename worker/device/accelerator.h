#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/batch_norm_args.h"
#include "kernels/cuda/cuda_kernels.h"

namespace cohort {

// Two work queues of an accelerator; each runs in its own order.
enum class Lane {
  // Computation on the calling thread's tensors.
  kCompute,
  // Copies that run at the same time.
  kCopy,
};

// A point in a lane that can be waited for.
class LaneEvent {
 public:
  virtual ~LaneEvent() = default;
};

// The operations that a worker needs from its device besides LibTorch: the
// batch-norm kernels, and copies to and from the host that do not block. Only
// Await blocks.
//
// Thread safety: safe, but the order of a lane is that of the calls.
// Errors of every call: ResourceExhausted without memory; Internal for every
//   other error of the device, which earlier work may have caused. Retrying
//   never helps.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // For people, such as "cuda:0 (NVIDIA H200)".
  virtual absl::string_view name() const = 0;
  // Free bytes of the device's memory.
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;

  // Host memory that the device can also access.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  virtual absl::StatusOr<std::unique_ptr<LaneEvent>> NewEvent() = 0;
  // The event happens once all work given to the lane so far is done.
  virtual absl::Status Record(Lane lane, LaneEvent& event) = 0;
  // Work given to the lane from now on begins after the event.
  virtual absl::Status WaitFor(Lane lane, LaneEvent& event) = 0;
  // Blocks the calling thread.
  virtual absl::Status Await(LaneEvent& event) = 0;
  virtual absl::StatusOr<bool> HasHappened(LaneEvent& event) = 0;

  // Between the device and pinned memory, or within one of them.
  virtual absl::Status Copy(Lane lane, void* to, const void* from,
                            int64_t bytes) = 0;
  // Copies many small tensors into one buffer, or out of it, in one launch;
  // float32. The buffer may be pinned.
  virtual absl::Status Pack(
      Lane lane, absl::Span<const kernels::cuda::PackSegment> segments,
      float* packed) = 0;
  virtual absl::Status Unpack(
      Lane lane, const float* packed,
      absl::Span<const kernels::cuda::PackSegment> segments) = 0;

  // As in kernels/cuda/cuda_kernels.h, in the compute lane. Per-channel
  // arguments may be in pinned memory.
  virtual absl::Status Moments(const kernels::MomentsArgs& args) = 0;
  virtual absl::Status Normalize(const kernels::NormalizeArgs& args) = 0;
  virtual absl::Status BackwardReduce(
      const kernels::BackwardReduceArgs& args) = 0;
  virtual absl::Status BackwardElementwise(
      const kernels::BackwardElementwiseArgs& args) = 0;
};

}  // namespace cohort
