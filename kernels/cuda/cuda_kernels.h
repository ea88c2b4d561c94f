#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/batch_norm_args.h"
#include "kernels/data_type.h"
#include "kernels/optimizer_step.h"

// The stream of the CUDA runtime; so that this header needs none of its.
struct CUstream_st;

// The batch-norm kernels and the packing of gradients on an NVIDIA
// GPU. They take the arguments of kernels/backend.h and follow the contract of
// its methods, but for what stands here:
//
// Pointers are to memory that the device reaches: its own, or pinned memory of
//   the host. Those per channel may be in either, those that a kernel reads
//   had better be in the device's.
// Order: a call puts its work into the queue's stream and returns; nothing
//   waits for the device.
// Types: float32, float16 and bfloat16. Float64 is refused.
// Accuracy: elements in float32, sums in float64 over batches of at most
//   kLoadsInFlight accesses in float32; see README.md. Squares of deviations
//   above 1.8e19 are infinite.
// Determinism: same model of GPU, same shapes, same alignment of the tensors to
//   16 bytes: same bits.
// Thread safety: safe with separate queues.
// Errors: InvalidArgument for shapes, types and pointers that no call can have;
//   FailedPrecondition where this program has no code for the device;
//   ResourceExhausted when it is out of memory; Unavailable for every other
//   error of the device, which may be of earlier work.
namespace cohort::kernels::cuda {

struct Device {
  std::string name;
  int32_t multiprocessors = 0;
  // Compute capability 9.0 is 90.
  int32_t capability = 0;
  int64_t memory_bytes = 0;
};

// Makes `device` the calling thread's and describes it.
//
// Errors: FailedPrecondition without a driver or a GPU, and without code for
//   this one; InvalidArgument if there is no GPU of this number.
absl::StatusOr<Device> OpenDevice(int32_t device);

// Where calls go.
struct Queue {
  // Null: the default stream.
  CUstream_st* stream = nullptr;
  // Scratch memory of the device for the kernels that sum, at a multiple of 16
  // bytes. Zero before its first use; a call that succeeds leaves it ready for
  // the next one of any shape in the same stream.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // Number on the device.
  int32_t multiprocessors = 0;
};

// Workspace of Moments and BackwardReduce at any alignment of the tensors.
int64_t BatchNormWorkspaceBytes(const BatchShape& shape, DataType type,
                                int32_t multiprocessors);

absl::Status Moments(const MomentsArgs& args, const Queue& queue);
absl::Status Normalize(const NormalizeArgs& args, const Queue& queue);
absl::Status BackwardReduce(const BackwardReduceArgs& args, const Queue& queue);
absl::Status BackwardElementwise(const BackwardElementwiseArgs& args,
                                 const Queue& queue);

// A contiguous float32 tensor, or a part of one, and its place in a packed
// buffer.
struct PackSegment {
  float* tensor = nullptr;
  int64_t count = 0;
  // Elements of the buffer before it.
  int64_t offset = 0;
};

// Copies tensors into a buffer, and out of one. Segments must not overlap where
// they are written. Vectors of 16 bytes are used where tensor and place are at
// multiples of 16 bytes.
absl::Status Pack(absl::Span<const PackSegment> segments, float* packed,
                  const Queue& queue);
absl::Status Unpack(const float* packed, absl::Span<const PackSegment> segments,
                    const Queue& queue);

}  // namespace cohort::kernels::cuda
