#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort {

// Prepares a CSV file so that it can be continued. Removes rows whose first
// field, a number, is above `last`, and a last line that was cut off. Readers
// see the old file or the new one. Returns the remaining rows, without the
// header; none if the file does not exist.
// Errors: those of FileSystem.
absl::StatusOr<std::vector<std::string>> CutTable(const std::string& path,
                                                  int64_t last);

}  // namespace cohort
