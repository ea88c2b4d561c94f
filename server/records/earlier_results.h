#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort {

// Moves what an earlier run wrote into `results_dir` to a new folder in it,
// earlier-1 or the next free number, so that a new run replaces nothing.
// Returns the folder's path; empty if there was nothing but tables without a
// row, as after a start that failed. Errors: FailedPrecondition: a file cannot
// be moved.
absl::StatusOr<std::string> SetEarlierResultsAside(
    const std::string& results_dir);

}  // namespace cohort
