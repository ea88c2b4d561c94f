#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Makes a CSV file one that can be continued: rows whose first field, a number,
// is above `last` are removed, as is a last line that was cut off. Readers see
// the old file or the new one. Returns the rows that stay, without the header;
// none if there is no such file.
// Errors: those of FileSystem.
absl::StatusOr<std::vector<std::string>> CutTable(const std::string& path,
                                                  int64_t last);

}  // namespace cohort
