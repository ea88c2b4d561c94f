#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/exit_codes.h"

namespace cohort {

// Whether --help was given, and its subject, if any.
struct HelpRequest {
  bool asked = false;
  std::string subject;
};

// Sets the program's ABSL_FLAGs from the arguments of main: --name=value,
// --name value, --switch and --noswitch. The first argument, the program's
// name, is skipped. absl::ParseCommandLine is not used because it ends the
// process itself, with its own exit code.
//
// Reading stops at --help, -h or --help=SUBJECT. The names of the flags that
// were set are added to `given`.
// Errors: NotFound (unknown flag, with a suggestion) and FailedPrecondition (an
//   argument that is not a flag, or a missing value) are usage errors;
//   InvalidArgument is a value that the flag does not accept.
absl::StatusOr<HelpRequest> SetFlags(absl::Span<char* const> arguments,
                                     std::set<std::string>* given = nullptr);

// Sets one flag. Errors name it `spelled`, as the user wrote it.
// Errors: NotFound and InvalidArgument as above.
absl::Status SetFlag(absl::string_view name, absl::string_view value,
                     absl::string_view spelled);

// The entry of `known` that `word` was probably meant to be; empty if none is
// close.
std::string NearestWord(absl::string_view word,
                        const std::vector<std::string>& known);

// kExitUsage or kExitConfig for an error of SetFlags.
ExitCode ExitCodeOf(const absl::Status& flag_error);

// Reads a choice such as --optimizer.
// Errors: InvalidArgument naming the flag, the value and the allowed values.
template <typename T>
absl::StatusOr<T> ParseChoice(
    absl::string_view flag, absl::string_view value,
    const std::vector<std::pair<absl::string_view, T>>& choices);

// The error of ParseChoice.
absl::Status BadChoice(absl::string_view flag, absl::string_view value,
                       const std::vector<absl::string_view>& allowed);

template <typename T>
absl::StatusOr<T> ParseChoice(
    absl::string_view flag, absl::string_view value,
    const std::vector<std::pair<absl::string_view, T>>& choices) {
  std::vector<absl::string_view> allowed;
  for (const auto& [name, choice] : choices) {
    if (name == value) return choice;
    allowed.push_back(name);
  }
  return BadChoice(flag, value, allowed);
}

}  // namespace cohort
