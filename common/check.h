#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// Prints file, line and message to stderr and aborts the process.
[[noreturn]] void CheckFailed(const char* file, int line,
                              absl::string_view condition,
                              absl::string_view message);

}  // namespace cohort

// Asserts, also in release builds, a condition that only our own bug can break.
// Never for input. The second argument is a text that may use absl::StrCat; it
// is evaluated only on failure.
#define COHORT_CHECK(condition, message)                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      ::cohort::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                   \
  } while (false)
