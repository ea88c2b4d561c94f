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

// Gradients on their way from an accelerator, and weights on their way to it,
// by its copy lane and pinned memory, while the compute lane goes on.
//
// Thread safety: one thread at a time, which may be one of autograd's.
// Errors of every call: those of the accelerator.
class WeightTransfer {
 public:
  // `weights`, with partitions, and the accelerator must outlive it.
  static absl::StatusOr<std::unique_ptr<WeightTransfer>> Make(
      const Compute& compute, const ModelWeights& weights);
  ~WeightTransfer();
  WeightTransfer(const WeightTransfer&) = delete;
  WeightTransfer& operator=(const WeightTransfer&) = delete;

  // Begins to fetch the gradient of a partition as the compute lane leaves it
  // here; it is kept alive until it has been fetched.
  absl::Status Fetch(int32_t partition);

  struct Fetched {
    int32_t partition = 0;
    ModelWeights::Gradient gradient;
  };
  // The one whose fetching began first, if it is there. With `wait` the calling
  // thread waits for it; absent: none is under way.
  absl::StatusOr<std::optional<Fetched>> Take(bool wait);
  // Waits for what is under way, and forgets it.
  void Drop();

  // As ModelWeights::Load. What the compute lane is given from now on sees the
  // new values, what it was given before the old ones.
  absl::Status Load(absl::Span<const ByteRope> ropes);

 private:
  struct Pending {
    int32_t partition = 0;
    std::shared_ptr<PinnedBlock> block;
    // What is copied from.
    std::vector<at::Tensor> sources;
    std::vector<int32_t> absent_slices;
  };

  WeightTransfer(const Compute& compute, const ModelWeights& weights,
                 std::unique_ptr<LaneEvent> computed,
                 std::unique_ptr<LaneEvent> copied);

  // The copy lane goes on only after what the compute lane has so far.
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
