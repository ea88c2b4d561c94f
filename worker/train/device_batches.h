#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "worker/datasets/dataset.h"
#include "worker/device/compute_device.h"
#include "worker/train/batch_reader.h"

namespace cohort {

// Moves a batch that was read on the CPU to the device, in its memory layout.
// The copy is queued in the compute lane, and nothing waits for it. On the CPU
// with contiguous images, returns the batch itself.
// Errors: ResourceExhausted naming the batch; those of the accelerator.
absl::StatusOr<Batch> MoveBatch(const Compute& compute, const Batch& batch);

// Makes batches on an accelerator that holds the images of a data set as bytes.
// Batches equal those of Dataset::Read bit for bit.
//
// Thread safety: none.
class DeviceBatches {
 public:
  // Both arguments, and the objects that they point to, must outlive it.
  DeviceBatches(const Compute& compute, const Dataset& dataset)
      : compute_(compute), dataset_(dataset) {}

  // Copies the images to the device if they take no more than an eighth of the
  // free memory: other workers may share the device, and the activations matter
  // more. Returns the number of bytes held, 0 if it holds none.
  // Errors: those of the accelerator, except running out of that memory.
  absl::StatusOr<int64_t> Hold();

  bool holds() const { return pixels_[0].defined(); }

  // Absent if the images are not held, or if the request does more than move
  // pixels.
  absl::StatusOr<std::optional<Batch>> Make(const SampleRequest& request);

 private:
  // `places`: int64 [n, 4] of sample, flip, top and left.
  at::Tensor ImagesAt(const at::Tensor& pixels, const at::Tensor& places) const;

  const Compute compute_;
  const Dataset& dataset_;
  // uint8, flat; indexed by DataSplit. Undefined if not held.
  std::array<at::Tensor, 2> pixels_;
  // [channels * 256].
  at::Tensor values_;
};

}  // namespace cohort
