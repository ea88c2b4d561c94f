#include "server/core/optimizer/workers_optimizer.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "server/core/settings/settings.h"

namespace cohort {
namespace {

// Settings that a worker's optimizer stands for.
constexpr absl::string_view kOptimizerSettings[] = {
    "optimizer",        "learning_rate",
#define COHORT_OPTIMIZER_NUMBER(type, name, default_value, limits, help) #name,
#include "common/optimizers.inc"
    "weight_decay",     "clip_norm",     "schedule",
    "decay_everything", "local_steps"};

// Settings of the learning rate over time.
constexpr absl::string_view kRateSettings[] = {
    "learning_rate", "schedule",      "step_epochs",        "step_gamma",
    "poly_power",    "warmup_epochs", "final_learning_rate"};

bool Contains(absl::Span<const absl::string_view> names,
              absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Otherwise the message would blame a flag of the server.
absl::Status OfWorkers(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("the workers' optimizer: ",
                                                  status.message()));
}

// Whether none of the settings `names` is the server's.
absl::Status CheckAreTheWorkers(const CoordinatorOptions& options,
                                const RunPlan& plan,
                                absl::Span<const absl::string_view> names) {
  COHORT_ASSIGN_OR_RETURN(CoordinatorOptions theirs,
                          OptimizerOfPlan(options, plan));
  theirs.optimizer.warmup_epochs = 0;
  for (const auto& [name, value] : Difference(theirs, options)) {
    if (!Contains(names, name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the workers' program changes numbers of the optimizer, but the server "
        "was given --",
        name, "=", value, " (theirs: ", SettingText(name, theirs),
        "), which takes precedence; remove that flag, or do not change it in "
        "the program"));
  }
  return absl::OkStatus();
}

absl::Status Unfit(absl::string_view seen, absl::string_view wanted) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the workers bring their own data, which has no epochs: got ", seen,
      ", want ", wanted));
}

}  // namespace

absl::StatusOr<CoordinatorOptions> TakeWorkersOptimizer(
    const CoordinatorOptions& options, const RunPlan& plan) {
  if (options.optimizer.kind != OptimizerKind::kAuto) return options;
  CoordinatorOptions taken = options;
  // Before the other numbers, which replace what it implies.
  const auto steps = plan.optimizer.find("local_steps");
  if (steps != plan.optimizer.end() && !options.given.contains(steps->first)) {
    COHORT_RETURN_IF_ERROR(
        OfWorkers(SetSetting(steps->first, steps->second, taken)));
    TakeOuterDefaults(taken);
  }
  for (const auto& [name, value] : plan.optimizer) {
    if (!Contains(kOptimizerSettings, name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "run plan: got the optimizer setting '", name, "', want one of ",
          absl::StrJoin(kOptimizerSettings, ", ")));
    }
    // `auto` given explicitly is no choice.
    if (options.given.contains(name) && name != "optimizer") continue;
    COHORT_RETURN_IF_ERROR(OfWorkers(SetSetting(name, value, taken)));
  }
  if (taken.optimizer.kind == OptimizerKind::kAuto) {
    taken.optimizer.kind = taken.policy.local_steps > 0
                               ? OptimizerKind::kNesterov
                               : OptimizerKind::kMomentum;
  }
  COHORT_RETURN_IF_ERROR(OfWorkers(Validate(taken)));
  return taken;
}

absl::StatusOr<CoordinatorOptions> OptimizerOfPlan(
    const CoordinatorOptions& options, const RunPlan& plan) {
  CoordinatorOptions open = options;
  open.optimizer.kind = OptimizerKind::kAuto;
  open.given.clear();
  return TakeWorkersOptimizer(open, plan);
}

absl::Status CheckPlanFits(const CoordinatorOptions& options,
                           const RunPlan& plan) {
  const int64_t global_batch = options.policy.global_batch;
  if (!plan.own_data) {
    if (global_batch <= plan.train_samples) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("--global_batch: got ", global_batch,
                     ", want sum, or at most ", plan.train_samples,
                     ", the training samples: a step has samples of one "
                     "epoch"));
  }
  if (global_batch != 0) {
    return Unfit(absl::StrCat("--global_batch=", global_batch),
                 "--global_batch=sum: the server cannot cut batches that only "
                 "the workers have");
  }
  if (options.policy.shares.given()) {
    return Unfit(
        absl::StrCat("--shares=", SettingText("shares", options)),
        "--shares=none: each worker decides on the size of its batches");
  }
  if (options.max_steps == 0) {
    return Unfit("no --max_steps", "a server with --max_steps=N");
  }
  if (options.policy.Keeps(StatisticsKind::kAfter)) {
    return Unfit("--bn_statistics with after",
                 "statistics that are kept while training: the server cannot "
                 "name batches to collect others from");
  }
  if (plan.rates_by_workers) return absl::OkStatus();
  if (options.optimizer.schedule == ScheduleKind::kStep) {
    return Unfit("--schedule=step", "constant, cosine or polynomial");
  }
  if (options.optimizer.warmup_epochs > 0) {
    return Unfit("--warmup_epochs", "0");
  }
  return absl::OkStatus();
}

absl::Status CheckRatesUnchanged(const CoordinatorOptions& before,
                                 const CoordinatorOptions& target) {
  for (const auto& [name, value] : Difference(before, target)) {
    if (!Contains(kRateSettings, name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--", name, ": got ", value,
        ", but the workers' program sets the learning rate of this run; change "
        "it there"));
  }
  return absl::OkStatus();
}

absl::Status CheckRatesAreTheWorkers(const CoordinatorOptions& options,
                                     const RunPlan& plan) {
  return CheckAreTheWorkers(options, plan, kRateSettings);
}

absl::Status CheckNumbersAreTheWorkers(
    const CoordinatorOptions& options, const RunPlan& plan,
    const std::vector<GroupNumber>& numbers) {
  std::vector<absl::string_view> names = {"optimizer"};
  for (const GroupNumber& number : numbers) names.push_back(number.name);
  return CheckAreTheWorkers(options, plan, names);
}

}  // namespace cohort
