#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cohort {

// The fields of one line of a CSV file, without their quotes.
std::vector<std::string> CsvFields(absl::string_view line);

// A field that may hold commas and quotes, in quotes.
std::string CsvQuoted(absl::string_view text);

}  // namespace cohort
