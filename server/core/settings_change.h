#pragma once

#include "absl/status/status.h"
#include "server/core/membership/registrar.h"
#include "server/core/membership/roster.h"
#include "server/core/run_parts.h"
#include "server/core/run_settings.h"
#include "server/core/turn.h"

// Applies a change of settings to the parts of a run.
namespace cohort {

// The parts that a change of settings acts on.
struct ChangeParts {
  RunSettings& settings;
  const Roster& roster;
  Registrar& registrar;
  RunParts run;
};

// Whether the run can go on with `target`.
// Errors: InvalidArgument (combination), FailedPrecondition (no room for
//   gradients, optimizer slots that do not fit).
absl::Status CheckChange(const CoordinatorOptions& target,
                         const ModelStore& model);

// Puts in force what acts at once. True if that lets the run go on without lost
// ranks.
bool ActAtOnce(const ChangeParts& parts, const CoordinatorOptions& target,
               Turn& turn);

// Puts the pending request in force, at the present version. There must be one,
// and nothing in flight; the step driver must be replaced afterwards.
void AdoptPending(const ChangeParts& parts, Turn& turn);

}  // namespace cohort
