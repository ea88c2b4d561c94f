#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/model_layout.h"

namespace cohort {

// Whether `name` is what `pattern` describes: `*` stands for any characters,
// dots included, `?` for one; everything else for itself.
bool MatchesPattern(absl::string_view pattern, absl::string_view name);

// Number of single-character edits between two words (Levenshtein).
size_t EditDistance(absl::string_view a, absl::string_view b);

// Up to three parameter names that differ least from `pattern`, to tell
// someone who mistyped one: "conv1.weight, conv2.weight".
std::string NearestNames(absl::string_view pattern, const ModelLayout& layout);

// Errors: FailedPrecondition naming `option`, the first pattern that matches
//   no parameter, and the nearest names.
absl::Status CheckPatternsMatch(absl::string_view option,
                                const std::vector<std::string>& patterns,
                                const ModelLayout& layout);

}  // namespace cohort
