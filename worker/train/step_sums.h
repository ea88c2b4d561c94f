#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/push.h"
#include "worker/device/compute_device.h"
#include "worker/device/pinned_pool.h"
#include "worker/train/batch_reader.h"

namespace cohort {

// The sums of a step's parts for its closing message: losses, and labels that
// were predicted. On an accelerator they are copied without waiting, and arrive
// while gradients are sent.
class StepSums {
 public:
  explicit StepSums(const Compute& compute) : compute_(compute) {}

  // Errors: those of the accelerator.
  absl::Status Add(const at::Tensor& loss_sum, const at::Tensor& logits,
                   const Batch& batch);
  // Waits for pending copies, and adds everything in the order of the parts.
  absl::Status AddTo(PushClosing& closing);

 private:
  struct Part {
    double loss_sum = 0;
    int64_t correct = 0;
    int64_t labels = 0;
    // The first two, as doubles, if they are on their way; null if they are
    // set.
    std::shared_ptr<PinnedBlock> block;
  };

  const Compute compute_;
  std::vector<Part> parts_;
};

}  // namespace cohort
