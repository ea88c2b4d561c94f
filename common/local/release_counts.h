#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/local/shared_memory.h"

namespace cohort {

// Counters in shared memory that one process raises and another one waits for:
// how often a place of an arena was released. They wrap around at 2^32.
//
// Thread safety: safe.
class ReleaseCounts {
 public:
  // For `count` counters.
  static int64_t SizeBytes(int32_t count) {
    return int64_t{count} * static_cast<int64_t>(sizeof(uint32_t));
  }

  // `memory` must hold at least `count` counters, and be writable here to
  // Raise them. Indices below are from 0 to `count` - 1.
  ReleaseCounts(SharedMemory memory, int32_t count);

  int fd() const { return memory_.fd(); }
  int64_t size_bytes() const { return memory_.size_bytes(); }

  // Everything done before it is visible to a reader that sees the new count.
  void Raise(int32_t index);
  uint32_t Get(int32_t index) const;
  // Waits until the counter is no longer `seen`, at most for `timeout`; may
  // return early.
  void WaitWhile(int32_t index, uint32_t seen, absl::Duration timeout) const;

 private:
  uint32_t* Word(int32_t index) const;

  // Fixed after construction; the words in it are atomic.
  SharedMemory memory_;
  const int32_t count_;
};

}  // namespace cohort
