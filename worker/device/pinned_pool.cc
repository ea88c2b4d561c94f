#include "worker/device/pinned_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Sizes are rounded up to multiples of this, so that there are few sizes.
constexpr int64_t kGranularityBytes = 512;

}  // namespace

// Blocks that are not in use.
struct PinnedPool::Shelf {
  explicit Shelf(Accelerator& device) : accelerator(device) {}
  ~Shelf() {
    for (const std::unique_ptr<PinnedBlock>& block : idle) {
      // The device may still be using the block. If the wait fails, none of its
      // work runs any more.
      accelerator.Await(block->event()).IgnoreError();
      accelerator.FreePinned(block->memory());
    }
  }

  // The oldest block of this size; null if there is none.
  std::unique_ptr<PinnedBlock> TakeOldest(int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    const auto found =
        std::find_if(idle.begin(), idle.end(),
                     [bytes](const std::unique_ptr<PinnedBlock>& block) {
                       return block->bytes() == bytes;
                     });
    if (found == idle.end()) return nullptr;
    std::unique_ptr<PinnedBlock> block = std::move(*found);
    idle.erase(found);
    return block;
  }

  void Return(std::unique_ptr<PinnedBlock> block) ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    idle.push_back(std::move(block));
  }

  Accelerator& accelerator;
  Mutex mu;
  std::vector<std::unique_ptr<PinnedBlock>> idle ABSL_GUARDED_BY(mu);
};

PinnedPool::PinnedPool(Accelerator& accelerator)
    : accelerator_(accelerator), shelf_(std::make_shared<Shelf>(accelerator)) {}

PinnedPool::~PinnedPool() = default;

absl::StatusOr<std::unique_ptr<PinnedBlock>> PinnedPool::Allocate(
    int64_t bytes) {
  const absl::StatusOr<void*> memory = accelerator_.AllocatePinned(bytes);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        absl::StrCat(bytes, " bytes of page-locked memory: ",
                                     memory.status().message()));
  }
  absl::StatusOr<std::unique_ptr<LaneEvent>> event = accelerator_.NewEvent();
  if (!event.ok()) {
    accelerator_.FreePinned(*memory);
    return event.status();
  }
  return std::make_unique<PinnedBlock>(*memory, bytes, *std::move(event));
}

absl::StatusOr<std::shared_ptr<PinnedBlock>> PinnedPool::Take(int64_t bytes) {
  const int64_t rounded =
      std::max<int64_t>(bytes + kGranularityBytes - 1, kGranularityBytes) /
      kGranularityBytes * kGranularityBytes;
  // The block that came back first is likely to be free first.
  std::unique_ptr<PinnedBlock> block = shelf_->TakeOldest(rounded);
  if (block != nullptr) {
    const absl::StatusOr<bool> done = accelerator_.HasHappened(block->event());
    if (!done.ok() || !*done) {
      shelf_->Return(std::move(block));
      COHORT_RETURN_IF_ERROR(done.status());
    }
  }
  if (block == nullptr) {
    COHORT_ASSIGN_OR_RETURN(block, Allocate(rounded));
  }
  return std::shared_ptr<PinnedBlock>(
      block.release(), [shelf = shelf_](PinnedBlock* returned) {
        shelf->Return(std::unique_ptr<PinnedBlock>(returned));
      });
}

absl::Status PinnedPool::MarkUse(Lane lane, const PinnedBlock& block) {
  return accelerator_.Record(lane, block.event());
}

}  // namespace cohort
