#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/datasets/dataset.h"
#include "worker/device/compute_device.h"
#include "worker/train/batch_reader.h"

namespace cohort {

// A batch that was read on the CPU, where and as it is computed: there in the
// order of the compute lane, and nobody waits. On the CPU, where contiguous
// images are wanted, the batch itself.
// Errors: ResourceExhausted naming the batch; those of the accelerator.
absl::StatusOr<Batch> MoveBatch(const Compute& compute, const Batch& batch);

// Makes batches on an accelerator that holds the images of a data set, as
// bytes. What a batch holds is what Dataset::Read writes, to the bit.
//
// Thread safety: none.
class DeviceBatches {
 public:
  // Both, and what they point to, must outlive it.
  DeviceBatches(const Compute& compute, const Dataset& dataset)
      : compute_(compute), dataset_(dataset) {}

  // Brings the images there if they take no more than an eighth of the memory
  // that is free: other workers may share the device, and the activations
  // matter more. Returns how many bytes it holds, 0 if it did not.
  // Errors: those of the accelerator, but not that memory ran out.
  absl::StatusOr<int64_t> Hold();

  bool holds() const { return pixels_[0].defined(); }

  // Absent if the images are not held, or the request needs more than moving
  // pixels.
  absl::StatusOr<std::optional<Batch>> Make(const SampleRequest& request);

 private:
  // `places`: int64 [n, 4] of sample, flip, top and left.
  at::Tensor ImagesAt(const at::Tensor& pixels, const at::Tensor& places) const;

  const Compute compute_;
  const Dataset& dataset_;
  // uint8, flat; by DataSplit. Undefined: not held.
  std::array<at::Tensor, 2> pixels_;
  // [channels * 256].
  at::Tensor values_;
};

}  // namespace cohort
