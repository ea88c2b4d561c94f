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

// Two queues of work of an accelerator, each in its own order.
enum class Lane {
  // Where the calling thread's tensors are computed.
  kCompute,
  // Copies that go on meanwhile.
  kCopy,
};

// A place in a lane, to be waited for.
class LaneEvent {
 public:
  virtual ~LaneEvent() = default;
};

// What a worker needs of the machine that its tensors lie on, besides LibTorch:
// the batch-norm kernels, and copies to and from the host that nobody waits
// for. Only Await blocks.
//
// Thread safety: safe, but the order of a lane is that of the calls.
// Errors of every call: ResourceExhausted without memory; Internal for
//   everything else that is wrong with the device, which may be of earlier
//   work. None of them is worth a second try.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // For people, such as "cuda:0 (NVIDIA H200)".
  virtual absl::string_view name() const = 0;
  // Of its memory.
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;

  // Memory of the host that the device reaches too.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  virtual absl::StatusOr<std::unique_ptr<LaneEvent>> NewEvent() = 0;
  // The event happens when all that the lane was given so far is done.
  virtual absl::Status Record(Lane lane, LaneEvent& event) = 0;
  // What the lane is given from now on begins after the event.
  virtual absl::Status WaitFor(Lane lane, LaneEvent& event) = 0;
  // The calling thread waits.
  virtual absl::Status Await(LaneEvent& event) = 0;
  virtual absl::StatusOr<bool> HasHappened(LaneEvent& event) = 0;

  // Between the device and pinned memory, or within one of them.
  virtual absl::Status Copy(Lane lane, void* to, const void* from,
                            int64_t bytes) = 0;
  // Many small tensors into one buffer, or out of it, in one go; float32. The
  // buffer may be pinned.
  virtual absl::Status Pack(
      Lane lane, absl::Span<const kernels::cuda::PackSegment> segments,
      float* packed) = 0;
  virtual absl::Status Unpack(
      Lane lane, const float* packed,
      absl::Span<const kernels::cuda::PackSegment> segments) = 0;

  // As in kernels/cuda/cuda_kernels.h, in the compute lane. What is per channel
  // may lie in pinned memory.
  virtual absl::Status Moments(const kernels::MomentsArgs& args) = 0;
  virtual absl::Status Normalize(const kernels::NormalizeArgs& args) = 0;
  virtual absl::Status BackwardReduce(
      const kernels::BackwardReduceArgs& args) = 0;
  virtual absl::Status BackwardElementwise(
      const kernels::BackwardElementwiseArgs& args) = 0;
};

}  // namespace cohort
