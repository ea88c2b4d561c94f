#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/byte_rope.h"

namespace cohort {

// Counts the bytes of received gradients that are in memory.
// Thread safety: safe. Ropes may outlive the meter.
class ByteMeter {
 public:
  ByteMeter() : held_bytes_(std::make_shared<std::atomic<int64_t>>(0)) {}

  // The same bytes, counted as long as any piece of the result exists.
  ByteRope Count(ByteRope rope);

  int64_t held_bytes() const {
    return held_bytes_->load(std::memory_order_relaxed);
  }

 private:
  // No other data is published through the count, so relaxed order is enough.
  std::shared_ptr<std::atomic<int64_t>> held_bytes_;
};

}  // namespace cohort
