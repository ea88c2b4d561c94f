#pragma once

#include <atomic>
#include <cstdint>

namespace cohort {

// Counts of what the streams of a shard have transferred and refused. No other
// data is published through them, so relaxed order is enough.
struct ServiceCounters {
  using Counter = std::atomic<int64_t>;

  static void Add(Counter& counter, int64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }
  static int64_t Read(const Counter& counter) {
    return counter.load(std::memory_order_relaxed);
  }

  // Payload bytes only, by type.
  Counter push_bytes_float32 = 0;
  Counter push_bytes_bfloat16 = 0;
  Counter pull_bytes_float32 = 0;
  Counter pull_bytes_bfloat16 = 0;
  Counter pulls = 0;
  Counter pulls_refused = 0;
  // Gradients that waited for room.
  Counter inflight_paused = 0;
  // Messages of pushes: of an incarnation that is over, or invalid.
  Counter pushes_fenced = 0;
  Counter pushes_invalid = 0;
};

}  // namespace cohort
