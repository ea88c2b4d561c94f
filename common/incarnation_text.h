#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/ids.h"

namespace cohort {

// For people: "2.1" is the first incarnation of the server's second start.
inline std::string IncarnationText(Incarnation incarnation) {
  const int64_t number = incarnation.value();
  return absl::StrCat(number >> 32, ".", (number & 0xFFFFFFFF) + 1);
}

}  // namespace cohort
