#pragma once

#include "absl/status/status.h"
#include "server/core/membership/rank_table.h"
#include "server/core/membership/registrar.h"
#include "server/core/membership/roster.h"
#include "server/core/requests.h"
#include "server/core/run.h"
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
absl::Status CheckChange(const CoordinatorOptions& before,
                         const CoordinatorOptions& target,
                         const ModelStore& model, const RankTable& ranks);

// The answer to a request that would have this effect.
ChangeAnswer AnswerTo(const RunSettings::Outlook& outlook,
                      const RunSettings& settings, Version version);

// The consequence for `present` workers if the cohort is too small for
// `target`:
// "; training pauses until ..."; otherwise empty.
std::string PauseText(const CoordinatorOptions& target, int32_t present);

// Puts in force what acts at once, and makes the rest pending. `settings` are
// those of `run`.
void RequestChange(const Run& run, RunSettings& settings,
                   const CoordinatorOptions& target, const ChangeNote& note,
                   Turn& turn);

// The settings once `target` is what the workers' optimizer makes of them; see
// TakeWorkersOptimizer. Entered into the history if `plan` names any setting.
void AdoptWorkersOptimizer(const ChangeParts& parts,
                           const CoordinatorOptions& target,
                           const RunPlan& plan, Turn& turn);

// Puts the pending request in force, at the present version. There must be one,
// and nothing in flight; the step driver must be replaced afterwards.
void PutChangeInForce(const ChangeParts& parts, Turn& turn);

}  // namespace cohort
