#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/flags/flag_limits.h"

// The one list of flags. server_flags.inc and worker_flags.inc have a row for
// each flag: name, type, default, limits and help, under the heading of its
// subject. What is made from these rows:
//
// - the flags themselves (server_main.cc and worker_main.cc expand them to
//   ABSL_FLAG), with their limits, --help and --help=SUBJECT;
// - environment variables COHORT_NAME;
// - the settings that `cohortctl policy set` changes and checkpoints keep;
// - completion of shells, and which flag of `cohortctl run` is for whom;
// - server/FLAGS.md and worker/FLAGS.md.
namespace cohort {

// When a new value of a flag takes effect.
enum class FlagChange {
  // Never while the process lives.
  kAtStart,
  // Between two steps, when nothing is in flight.
  kBetweenSteps,
  kAtOnce,
};

struct FlagInfo {
  absl::string_view name;
  // "whole number", "number", "true or false", "duration" or "text".
  absl::string_view type;
  // As it would be written on a command line.
  std::string default_text;
  FlagLimits limits;
  FlagChange change = FlagChange::kAtStart;
  // The group's name in --help=SUBJECT, and its heading.
  absl::string_view subject;
  absl::string_view heading;
  absl::string_view help;

  bool is_switch() const { return type == "true or false"; }
  // A setting can be changed during a run, and is kept in checkpoints.
  bool is_setting() const { return change != FlagChange::kAtStart; }
};

using FlagTable = std::vector<FlagInfo>;

// All flags of cohort-server and of cohort-worker, in the order of their help.
const FlagTable& ServerFlagTable();
const FlagTable& WorkerFlagTable();

// Null if there is none of that name. A switch is also found by its negative
// form, "noresume".
const FlagInfo* FindFlag(absl::Span<const FlagInfo> flags,
                         absl::string_view name);

// True for the name of a flag that cohort-worker has and cohort-server has not.
bool IsForWorkersOnly(absl::string_view name);

// The subjects in their order, each once.
std::vector<absl::string_view> SubjectsOf(absl::Span<const FlagInfo> flags);

// Checks a value of the right type against the limits of its flag. `spelled`
// is what the user wrote in place of the name, such as "--workers".
// Errors: InvalidArgument naming the flag, the value and the values wanted.
absl::Status CheckLimits(const FlagInfo& flag, absl::string_view value,
                         absl::string_view spelled);

}  // namespace cohort
