#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Durations are seconds.
using WorkerFlagValue = std::variant<bool, int64_t, double, std::string>;

// The value of a flag of cohort-worker that the variable COHORT_NAME gives, by
// the row of the flag in the table: of its type, and within its limits. Errors:
// InvalidArgument (names the variable, the text and what is wanted).
absl::StatusOr<WorkerFlagValue> ParseWorkerFlag(absl::string_view name,
                                                absl::string_view text);

}  // namespace cohort
