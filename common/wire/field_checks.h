#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// From and to an enumeration of the protocol, by a table of all values: ours,
// then the protocol's.
template <typename Ours, typename Theirs, size_t kRows>
Theirs ValueToProto(const std::pair<Ours, Theirs> (&table)[kRows], Ours value) {
  for (const auto& [ours, theirs] : table) {
    if (ours == value) return theirs;
  }
  return Theirs();
}

template <typename Ours, typename Theirs, size_t kRows>
absl::StatusOr<Ours> ValueFromProto(
    const std::pair<Ours, Theirs> (&table)[kRows], absl::string_view field,
    Theirs value, absl::string_view wanted) {
  for (const auto& [ours, theirs] : table) {
    if (theirs == value) return ours;
  }
  return Refuse(field, static_cast<int>(value), wanted);
}

}  // namespace cohort::wire_internal
