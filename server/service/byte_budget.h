#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/byte_rope.h"

namespace cohort {

// Bounds the bytes of received gradients that are held until they are folded.
// Thread safety: safe. Ropes may outlive the budget.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit_bytes);

  // The same bytes, counted for as long as any piece of the result lives.
  // Errors: ResourceExhausted with the numbers.
  absl::StatusOr<ByteRope> Admit(ByteRope rope);

  int64_t held_bytes() const;

 private:
  const int64_t limit_bytes_;
  // A counter only: nothing else is published through it, so relaxed order is
  // enough.
  std::shared_ptr<std::atomic<int64_t>> held_bytes_;
};

}  // namespace cohort
