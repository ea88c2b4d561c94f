#pragma once

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// Checks shared by the two halves of the conversions.
namespace cohort::wire_internal {

template <typename Seen>
absl::Status Refuse(absl::string_view field, const Seen& seen,
                    absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": got ", seen, ", want ", wanted));
}

inline absl::Status CheckNotNegative(absl::string_view field, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return Refuse(field, value, "at least 0");
}

// For weights and divisors: finite and at least 0.
inline absl::Status CheckWeight(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Refuse(field, value, "a finite number of at least 0");
}

}  // namespace cohort::wire_internal
