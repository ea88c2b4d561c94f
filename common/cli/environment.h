#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/flags/flag_table.h"

namespace cohort {

// The environment of this process, "NAME=value" each.
std::vector<std::string> Environment();

// The value of a variable; empty if it is not set.
absl::string_view ValueIn(absl::Span<const std::string> environment,
                          absl::string_view name);

// "COHORT_WORKERS" for "workers".
std::string VariableOf(absl::string_view flag);

// Sets `flags`, rows of ABSL_FLAGs, from variables COHORT_NAME, and adds the
// names of those set to `given`. A flag that is already in `given` keeps its
// value: the command line takes precedence. An empty variable counts as absent,
// so that a template may always name it.
//
// These are skipped: flags of another program of Cohort, so that one
// environment serves all of them; variables that Kubernetes and Docker add for
// a service named cohort-anything (COHORT_SERVER_PORT=tcp://...); variables
// that only scripts and tests of this project read (COHORT_SKIP_DEPS and so
// on).
//
// Errors: NotFound: a variable COHORT_* that no program or script reads, with a
//   suggestion; InvalidArgument: a value that the flag does not accept.
absl::Status SetFlagsFromEnvironment(absl::Span<const std::string> environment,
                                     absl::Span<const FlagInfo> flags,
                                     std::set<std::string>& given);

// Only the check, for a program whose flags are not ABSL_FLAGs.
// Errors: NotFound as above.
absl::Status CheckVariables(absl::Span<const std::string> environment);

}  // namespace cohort
