#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/accelerator.h"

namespace cohort {

// Pinned memory, and an event for the device's last work on it.
class PinnedBlock {
 public:
  PinnedBlock(void* memory, int64_t bytes, std::unique_ptr<LaneEvent> event)
      : memory_(memory), bytes_(bytes), event_(std::move(event)) {}

  void* memory() const { return memory_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  // At least the number of bytes requested.
  int64_t bytes() const { return bytes_; }
  // Where the lane's last work on the block is recorded.
  LaneEvent& event() const { return *event_; }

 private:
  void* const memory_;
  const int64_t bytes_;
  const std::unique_ptr<LaneEvent> event_;
};

// Hands out pinned memory and reuses it: allocating it takes as long as a step.
// A block comes back when its last owner releases it, from any thread. It is
// handed out again once its event has happened, so an owner may release it
// while the device still reads.
//
// Thread safety: safe.
class PinnedPool {
 public:
  // `accelerator` must outlive the pool and all blocks.
  explicit PinnedPool(Accelerator& accelerator);
  ~PinnedPool();

  // Errors: those of the accelerator; the text gives the number of bytes.
  absl::StatusOr<std::shared_ptr<PinnedBlock>> Take(int64_t bytes);
  // Records that `lane` uses the block up to this point.
  absl::Status MarkUse(Lane lane, const PinnedBlock& block);

 private:
  struct Shelf;

  absl::StatusOr<std::unique_ptr<PinnedBlock>> Allocate(int64_t bytes);

  Accelerator& accelerator_;
  // Also owned by the blocks in use.
  const std::shared_ptr<Shelf> shelf_;
};

}  // namespace cohort
