#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// A limit on bytes that are reserved before they are allocated.
// Thread safety: safe. Reservations may outlive it.
class ReservedBytes {
 public:
  // Returns the bytes when it is destroyed.
  using Reservation = std::shared_ptr<const void>;

  explicit ReservedBytes(int64_t limit_bytes)
      : limit_bytes_(limit_bytes),
        held_(std::make_shared<std::atomic<int64_t>>(0)) {}

  // `what` names the bytes in errors. The first reservation succeeds whatever
  // its size.
  // Errors: ResourceExhausted with the numbers.
  absl::StatusOr<Reservation> Take(absl::string_view what, int64_t bytes);

 private:
  const int64_t limit_bytes_;
  // No other data is published through the count, so relaxed order is enough.
  const std::shared_ptr<std::atomic<int64_t>> held_;
};

}  // namespace cohort
