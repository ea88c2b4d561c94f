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

// The value of a variable; empty if there is none.
absl::string_view ValueIn(absl::Span<const std::string> environment,
                          absl::string_view name);

// "COHORT_WORKERS" for "workers".
std::string VariableOf(absl::string_view flag);

// Sets `flags`, rows of ABSL_FLAGs, from the variables COHORT_NAME. A flag in
// `given` stays as it is: the command line wins; those set here are added to
// it. An empty variable counts as absent, so that a template may always name
// it.
//
// Passed over: flags of another program of Cohort, so that one environment
// serves all of them; what Kubernetes and Docker add for a service of the name
// cohort-anything (COHORT_SERVER_PORT=tcp://...); what only scripts and tests
// of this project read (COHORT_SKIP_DEPS and so on).
//
// Errors: NotFound, a variable COHORT_* that means nothing to any of them, with
//   a suggestion; InvalidArgument, a value that the flag does not take.
absl::Status SetFlagsFromEnvironment(absl::Span<const std::string> environment,
                                     absl::Span<const FlagInfo> flags,
                                     std::set<std::string>& given);

// The check alone, for a program whose flags are no ABSL_FLAGs.
// Errors: NotFound as above.
absl::Status CheckVariables(absl::Span<const std::string> environment);

}  // namespace cohort
