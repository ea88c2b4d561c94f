#pragma once

#include "absl/status/status.h"
#include "server/core/events/requests.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/run_settings.h"
#include "server/core/membership/rank_table.h"
#include "server/core/run.h"

// Applies a change of settings to the parts of a run.
namespace cohort {

// Whether the run can continue with `target`.
// Errors: InvalidArgument (combination), FailedPrecondition (no room for
//   gradients, optimizer slots that do not fit, shares beyond a worker's most).
absl::Status CheckChange(const CoordinatorOptions& before,
                         const CoordinatorOptions& target,
                         const ModelStore& model, const RankTable& ranks,
                         const RunLedger& ledger);

// Whether local steps may begin or end now, if `target` says so.
// Errors: FailedPrecondition: the workers' program decides; or the optimizer
// has
//   gathered what is in other units, such as a velocity.
absl::Status CheckLocalSwitch(const Run& run, const CoordinatorOptions& target);

// The consequence for `present` workers if the cohort is too small for
// `target`:
// "; training pauses until ..."; otherwise empty.
std::string PauseText(const CoordinatorOptions& target, int32_t present);

// Puts in force what acts at once, and makes the rest pending.
void RequestChange(Run& run, const CoordinatorOptions& target,
                   const ChangeNote& note, Turn& turn);

// Requests the next planned change if it is due. If it cannot be made, the run
// ends, for it would not be the recorded one. False: none is due.
bool RequestPlanned(Run& run, Turn& turn);

// The settings once `target` is what the workers' optimizer makes of them; see
// TakeWorkersOptimizer. Entered into the history if `plan` names any setting.
void AdoptWorkersOptimizer(Run& run, const CoordinatorOptions& target,
                           const RunPlan& plan, Turn& turn);

// Puts the pending request in force, at the present version. There must be one,
// and nothing in flight; the step driver must be replaced afterwards.
void PutChangeInForce(Run& run, Turn& turn);

}  // namespace cohort
