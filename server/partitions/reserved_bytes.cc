#include "server/partitions/reserved_bytes.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cohort {

absl::StatusOr<ReservedBytes::Reservation> ReservedBytes::Take(
    absl::string_view what, int64_t bytes) {
  const int64_t before = held_->fetch_add(bytes, std::memory_order_relaxed);
  if (before > 0 && bytes > limit_bytes_ - before) {
    held_->fetch_sub(bytes, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": got ", bytes, " bytes in addition to ", before,
                     " already reserved, want at most ", limit_bytes_,
                     " in total; try again when the other requests are done"));
  }
  return Reservation(held_.get(), [held = held_, bytes](const void*) {
    held->fetch_sub(bytes, std::memory_order_relaxed);
  });
}

}  // namespace cohort
