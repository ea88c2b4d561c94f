#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// A script that makes a shell complete cohortctl's verbs and flags, generated
// from the table of verbs. `shell` is bash, zsh or fish.
// Errors: NotFound: another shell.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell);

}  // namespace cohort
