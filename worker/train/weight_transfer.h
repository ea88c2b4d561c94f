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
#include "worker/session/model_memory.h"

namespace cohort {

// A model on an accelerator: gradients are copied from it and weights to it
// through its copy lane and pinned memory, while the compute lane computes.
//
// Thread safety: one thread at a time, which may be one of autograd's.
// Errors of every call: those of the accelerator.
class WeightTransfer final : public ModelMemory {
 public:
  // `parameters` are in the order of the layout. The accelerator must outlive
  // it.
  static absl::StatusOr<std::unique_ptr<ModelMemory>> Make(
      const Compute& compute, std::vector<at::Tensor> parameters);
  ~WeightTransfer() override;
  WeightTransfer(const WeightTransfer&) = delete;
  WeightTransfer& operator=(const WeightTransfer&) = delete;

  // Starts to fetch the gradient of a partition, as it is after the work given
  // to the compute lane so far. The gradient is kept alive until then.
  absl::Status Fetch(int32_t partition) override;
  absl::StatusOr<std::optional<Gradient>> Take(bool wait) override;
  void Drop() override;

  // Work given to the compute lane from now on sees the new values; earlier
  // work sees the old ones.
  absl::Status Load(absl::Span<const ByteRope> ropes) override;

 private:
  struct Pending {
    int32_t partition = 0;
    std::shared_ptr<PinnedBlock> block;
    // The tensors that are copied from; kept alive until then.
    std::vector<at::Tensor> sources;
    std::vector<int32_t> absent_slices;
  };

  WeightTransfer(const Compute& compute, std::vector<at::Tensor> parameters,
                 std::unique_ptr<LaneEvent> computed,
                 std::unique_ptr<LaneEvent> copied);

  // Makes the copy lane wait for the compute lane's work so far.
  absl::Status CopyAfterCompute();

  // Fixed after construction.
  Accelerator& accelerator_;
  PinnedPool& pinned_;
  const std::vector<at::Tensor> parameters_;
  const std::unique_ptr<LaneEvent> computed_;
  const std::unique_ptr<LaneEvent> copied_;

  std::deque<Pending> pending_;
};

}  // namespace cohort
