#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model_layout.h"
#include "common/push.h"
#include "server/core/settings/options.h"

// What the workers' registration decides about the settings of a run.
namespace cohort {

// `options` as they are once `plan` is registered. With OptimizerKind::kAuto,
// the settings of RunPlan::optimizer are taken, except those that were given
// explicitly; the optimizer is momentum if the plan names none. With any other
// kind, nothing changes.
// Errors: InvalidArgument naming a setting of the plan that is no optimizer's,
//   or whose value is bad.
absl::StatusOr<CoordinatorOptions> TakeWorkersOptimizer(
    const CoordinatorOptions& options, const RunPlan& plan);

// `options` with the optimizer of `plan`, as without flags of the server.
// Errors: as TakeWorkersOptimizer.
absl::StatusOr<CoordinatorOptions> OptimizerOfPlan(
    const CoordinatorOptions& options, const RunPlan& plan);

// Whether the run can continue with these options.
// Errors: FailedPrecondition: data of the workers' own needs max_steps, and no
//   setting that counts epochs or samples, divides samples, or reads them by
//   number. Other data: a step has no more samples than an epoch.
absl::Status CheckPlanFits(const CoordinatorOptions& options,
                           const RunPlan& plan);

// For runs whose workers send the learning rates.
// Errors: InvalidArgument if `target` changes the learning rate.
absl::Status CheckRatesUnchanged(const CoordinatorOptions& before,
                                 const CoordinatorOptions& target);

// Whether workers that registered `plan` may send rates that differ from it.
// Errors: InvalidArgument if the learning rate is the server's: a flag or a
//   change of policy has set it.
absl::Status CheckRatesAreTheWorkers(const CoordinatorOptions& options,
                                     const RunPlan& plan);
// The same for other numbers of the optimizer.
absl::Status CheckNumbersAreTheWorkers(const CoordinatorOptions& options,
                                       const RunPlan& plan,
                                       const std::vector<GroupNumber>& numbers);

}  // namespace cohort
