#pragma once

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "worker/device/compute_device.h"
#include "worker/device/pinned_pool.h"
#include "worker/train/model_weights.h"

namespace cohort {

// Copies gradients from an accelerator and weights to it, through its copy lane
// and pinned memory, while the compute lane goes on.
//
// Thread safety: one thread at a time, which may be one of autograd's.
// Errors of every call: those of the accelerator.
class WeightTransfer {
 public:
  // `weights`, which must have partitions, and the accelerator must outlive it.
  static absl::StatusOr<std::unique_ptr<WeightTransfer>> Make(
      const Compute& compute, const ModelWeights& weights);
  ~WeightTransfer();
  WeightTransfer(const WeightTransfer&) = delete;
  WeightTransfer& operator=(const WeightTransfer&) = delete;

  // Starts to fetch the gradient of a partition, as it is after the work given
  // to the compute lane so far. The gradient is kept alive until then.
  absl::Status Fetch(int32_t partition);

  struct Fetched {
    int32_t partition = 0;
    ModelWeights::Gradient gradient;
  };
  // The gradient whose fetch started first, if it has arrived. With `wait`, the
  // calling thread waits for it. Absent if none is available.
  absl::StatusOr<std::optional<Fetched>> Take(bool wait);
  // Waits for all fetches, and discards the results.
  void Drop();

  // Like ModelWeights::Load. Work given to the compute lane from now on sees
  // the new values; earlier work sees the old ones.
  absl::Status Load(absl::Span<const ByteRope> ropes);

 private:
  struct Pending {
    int32_t partition = 0;
    std::shared_ptr<PinnedBlock> block;
    // The tensors that are copied from; kept alive until then.
    std::vector<at::Tensor> sources;
    std::vector<int32_t> absent_slices;
  };

  WeightTransfer(const Compute& compute, const ModelWeights& weights,
                 std::unique_ptr<LaneEvent> computed,
                 std::unique_ptr<LaneEvent> copied);

  // Makes the copy lane wait for the compute lane's work so far.
  absl::Status CopyAfterCompute();

  // Fixed after construction.
  Accelerator& accelerator_;
  PinnedPool& pinned_;
  const ModelWeights& weights_;
  const std::unique_ptr<LaneEvent> computed_;
  const std::unique_ptr<LaneEvent> copied_;

  std::deque<Pending> pending_;
};

}  // namespace cohort
