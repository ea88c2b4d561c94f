#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace cohort {

// A flag that cohortctl itself reads, for one verb or for all.
struct FlagSpec {
  absl::string_view name;
  // Placeholder for its value in help, such as "N"; empty for a switch.
  absl::string_view value;
  absl::string_view help;
};

// A flag as it was typed: "--name=value", or "--name" and "value".
struct GivenFlag {
  std::string name;
  std::vector<std::string> typed;
};

// A parsed command line: words that are not flags, and flags by name. Switches
// have the value "true".
struct Arguments {
  std::vector<std::string> words;
  std::map<std::string, std::string> flags;
  // The flags in the order they were typed, to pass to another program.
  std::vector<GivenFlag> given;
  // The words after "--", unchanged; absent if there was no "--".
  std::optional<std::vector<std::string>> rest;

  bool Has(const std::string& flag) const { return flags.contains(flag); }
  // Absent if the flag was not given.
  std::optional<std::string> Value(const std::string& flag) const;
};

// Reads --name=value, --name value and --switch, in any order, with -h for
// --help, -q for --quiet and -o for --output, until "--". A flag that is not in
// `known` takes the next word as its value unless it has one or no word
// follows; the caller decides whether it is allowed. Errors: InvalidArgument: a
// flag given twice, without its value or without a
//   name, or a switch with a value.
absl::StatusOr<Arguments> ReadArguments(
    absl::Span<const std::string> arguments,
    absl::Span<const FlagSpec* const> known);

// Time between two polls: --interval.
// Errors: InvalidArgument: not a duration of at least 100 ms.
absl::StatusOr<absl::Duration> IntervalOf(const Arguments& arguments,
                                          absl::Duration otherwise);

// The range of a number.
struct Limits {
  int32_t min = 0;
  int32_t max = INT32_MAX;
};
// The number that is the value of `flag`.
// Errors: InvalidArgument: not a number within the limits.
absl::StatusOr<int32_t> NumberOf(const Arguments& arguments,
                                 const std::string& flag, int32_t otherwise,
                                 Limits limits);

// Quotes `word` so that a shell reads it as one word.
std::string ShellWord(const std::string& word);

}  // namespace cohort
