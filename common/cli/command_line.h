#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cohort {

// Exit codes that all programs of Cohort share.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  // The command line itself is wrong: an unknown flag, a stray argument.
  kExitUsage = 2,
  // A flag's value, or a combination, cannot be used.
  kExitConfig = 3,
  kExitUnreachable = 5,
  kExitWaitTimeout = 6,
  kExitBadCheckpoint = 7,
  kExitNonfinite = 8,
  // An exception or a failed allocation in the middle of a change.
  kExitHalfDone = 9,
};

// Whether --help was given, and with which subject; empty: none.
struct HelpRequest {
  bool asked = false;
  std::string subject;
};

// Sets the ABSL_FLAGs of the program from the arguments of main, of which the
// first, the program's name, is passed over: --name=value,
// --name value, --switch and --noswitch. Not absl::ParseCommandLine, which
// ends the process itself, with a code of its own.
//
// --help, -h or --help=SUBJECT ends the reading. The names of the flags that
// were set are added to `given`.
// Errors: NotFound (unknown flag, with a suggestion) and FailedPrecondition
//   (an argument that is no flag, a value that is missing) are usage;
//   InvalidArgument is a value that the flag does not take.
absl::StatusOr<HelpRequest> SetFlags(absl::Span<char* const> arguments,
                                     std::set<std::string>* given = nullptr);

// Sets one flag. An error calls it `spelled`, as the user wrote it.
// Errors: NotFound and InvalidArgument as above.
absl::Status SetFlag(absl::string_view name, absl::string_view value,
                     absl::string_view spelled);

// The one of `known` that `word` was probably meant to be; empty if none is
// near.
std::string NearestWord(absl::string_view word,
                        const std::vector<std::string>& known);

// kExitUsage or kExitConfig for the errors of SetFlags.
ExitCode ExitCodeOf(const absl::Status& flag_error);

// Reads a choice such as --optimizer.
// Errors: InvalidArgument naming flag, value and the values allowed.
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
