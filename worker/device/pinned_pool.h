#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/accelerator.h"

namespace cohort {

// Pinned memory, and how far the device is with it.
class PinnedBlock {
 public:
  PinnedBlock(void* memory, int64_t bytes, std::unique_ptr<LaneEvent> event)
      : memory_(memory), bytes_(bytes), event_(std::move(event)) {}

  void* memory() const { return memory_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  // At least as many as were asked for.
  int64_t bytes() const { return bytes_; }
  // Where the lane's last work on the block is recorded.
  LaneEvent& event() const { return *event_; }

 private:
  void* const memory_;
  const int64_t bytes_;
  const std::unique_ptr<LaneEvent> event_;
};

// Hands out pinned memory again and again: to allocate it takes as long as a
// step. A block comes back when the last owner lets go of it, from any thread,
// and is handed out again once its event has happened, so an owner may let go
// while the device still reads.
//
// Thread safety: safe.
class PinnedPool {
 public:
  // `accelerator` must outlive the pool and all blocks.
  explicit PinnedPool(Accelerator& accelerator);
  ~PinnedPool();

  // Errors: those of the accelerator; the text says how much was asked for.
  absl::StatusOr<std::shared_ptr<PinnedBlock>> Take(int64_t bytes);
  // Records that `lane` works on the block up to here.
  absl::Status MarkUse(Lane lane, const PinnedBlock& block);

 private:
  struct Shelf;

  absl::StatusOr<std::unique_ptr<PinnedBlock>> Allocate(int64_t bytes);

  Accelerator& accelerator_;
  // Also owned by the blocks that are out.
  const std::shared_ptr<Shelf> shelf_;
};

}  // namespace cohort
