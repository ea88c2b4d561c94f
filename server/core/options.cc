#include "server/core/options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/assignment.h"
#include "common/dns_label.h"
#include "common/status_macros.h"
#include "server/core/limits.h"
#include "server/core/optimizer/mask.h"

namespace cohort {
namespace {

absl::Status Bad(absl::string_view option, absl::string_view seen,
                 absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", option, ": got ", seen, ", want ", wanted));
}

// False for NaN.
bool Within(double value, double least, double most) {
  return value >= least && value <= most;
}

bool Holds(const std::vector<StatisticsKind>& kinds, StatisticsKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

absl::Status ValidateStatistics(const PolicyOptions& policy) {
  const std::vector<StatisticsKind>& kinds = policy.statistics;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::vector<StatisticsKind> rest(kinds.begin() + i + 1, kinds.end());
    if (Holds(rest, kinds[i])) {
      return Bad("bn_statistics", StatisticsNames(kinds),
                 "auto, or each kind at most once");
    }
  }
  if (!kinds.empty() && kinds.front() == StatisticsKind::kBatch) {
    return Bad("bn_statistics", StatisticsNames(kinds),
               "another kind first: of batch nothing is kept that could be "
               "exported");
  }
  if (policy.aggregation == AggregationKind::kSync) return absl::OkStatus();
  if (Holds(kinds, StatisticsKind::kSync)) {
    return Bad("bn_statistics", "sync",
               absl::StrCat("async, chief, after or auto with --aggregation=",
                            AggregationName(policy.aggregation),
                            ": combined statistics need --aggregation=sync"));
  }
  return absl::OkStatus();
}

absl::Status ValidateStaleness(const StalenessOptions& staleness) {
  if (staleness.versions_max < 0) {
    return Bad("max_staleness", absl::StrCat(staleness.versions_max),
               "0 or more versions");
  }
  if (staleness.versions_free.value_or(0) < 0) {
    return Bad("staleness_free", absl::StrCat(*staleness.versions_free),
               "auto, or 0 or more versions");
  }
  if (!Within(staleness.compensation, 0, limits::kFactorMax)) {
    return Bad("compensation", absl::StrCat(staleness.compensation),
               absl::StrCat("0 to ", limits::kFactorMax));
  }
  return absl::OkStatus();
}

absl::Status ValidateGroup(const PolicyOptions& policy, int32_t workers) {
  const int32_t size = policy.normalization_group;
  if (size == 0) return absl::OkStatus();
  if (size < 2 || size > workers) {
    return Bad("normalization_group", absl::StrCat(size),
               absl::StrCat("0 (all workers) or 2 to --workers, ", workers,
                            "; --normalization=local makes each worker a "
                            "group"));
  }
  if (Resolve(policy).normalization == NormalizationKind::kGlobal) {
    return absl::OkStatus();
  }
  return Bad("normalization_group", absl::StrCat(size),
             "0 with local normalisation: groups meet as all workers do, with "
             "--aggregation=sync and --normalization=global or auto");
}

absl::Status ValidatePolicy(const PolicyOptions& policy, int32_t workers) {
  if (policy.pushes_min < 0 || policy.pushes_min > workers) {
    return Bad("min_pushes", absl::StrCat(policy.pushes_min),
               absl::StrCat("0 (all) to --workers, ", workers));
  }
  if (policy.lead_max < 1) {
    return Bad("max_lead", absl::StrCat(policy.lead_max), "1 or more");
  }
  COHORT_RETURN_IF_ERROR(ValidateStaleness(policy.staleness));
  COHORT_RETURN_IF_ERROR(ValidateStatistics(policy));
  COHORT_RETURN_IF_ERROR(ValidateGroup(policy, workers));
  if (policy.precise_batches < 1 ||
      policy.precise_batches > limits::kPreciseBatchesMax) {
    return Bad("precise_batches", absl::StrCat(policy.precise_batches),
               absl::StrCat("1 to ", limits::kPreciseBatchesMax));
  }
  if (policy.aggregation == AggregationKind::kSync) return absl::OkStatus();
  const absl::string_view aggregation = AggregationName(policy.aggregation);
  if (policy.normalization == NormalizationKind::kGlobal) {
    return Bad("normalization", "global",
               absl::StrCat("local or auto with --aggregation=", aggregation,
                            ": a rendezvous of all workers needs "
                            "--aggregation=sync"));
  }
  if (policy.pushes_min != 0) {
    return Bad("min_pushes", absl::StrCat(policy.pushes_min),
               absl::StrCat("0 with --aggregation=", aggregation,
                            ": pushes are applied one by one"));
  }
  return absl::OkStatus();
}

bool InUnit(double value) { return value >= 0 && value < 1; }

absl::Status ValidateSchedule(const OptimizerOptions& o, int64_t epochs) {
  double before = 0;
  for (double milestone : o.step_epochs) {
    if (milestone > before && std::isfinite(milestone)) {
      before = milestone;
      continue;
    }
    return Bad("step_epochs", absl::StrJoin(o.step_epochs, ","),
               "epochs above 0, each above the one before");
  }
  if (o.schedule == ScheduleKind::kStep && o.step_epochs.empty()) {
    return Bad("step_epochs", "none",
               "at least one milestone with --schedule=step");
  }
  if (!Within(o.step_gamma, limits::kFloatMin, limits::kFactorMax)) {
    return Bad("step_gamma", absl::StrCat(o.step_gamma),
               absl::StrCat("above 0, up to ", limits::kFactorMax));
  }
  const double last =
      o.learning_rate *
      std::pow(o.step_gamma, static_cast<double>(o.step_epochs.size()));
  if (o.schedule == ScheduleKind::kStep &&
      !(last <= limits::kLearningRateMax)) {
    return Bad(
        "step_gamma", absl::StrCat(o.step_gamma),
        absl::StrCat("a rate up to ", limits::kLearningRateMax, " after ",
                     o.step_epochs.size(), " steps, it would be ", last));
  }
  if (!Within(o.poly_power, limits::kFloatMin, limits::kFactorMax)) {
    return Bad("poly_power", absl::StrCat(o.poly_power),
               absl::StrCat("above 0, up to ", limits::kFactorMax));
  }
  if (!(o.warmup_epochs >= 0 &&
        o.warmup_epochs <= static_cast<double>(epochs))) {
    return Bad("warmup_epochs", absl::StrCat(o.warmup_epochs),
               absl::StrCat("0 to --epochs, ", epochs));
  }
  if (!Within(o.final_learning_rate, 0, limits::kLearningRateMax)) {
    return Bad("final_learning_rate", absl::StrCat(o.final_learning_rate),
               absl::StrCat("0 to ", limits::kLearningRateMax));
  }
  return absl::OkStatus();
}

absl::Status ValidateOptimizer(const OptimizerOptions& o, int64_t epochs) {
  if (!(o.learning_rate > 0 && o.learning_rate <= limits::kLearningRateMax)) {
    return Bad("learning_rate", absl::StrCat(o.learning_rate),
               absl::StrCat("above 0, up to ", limits::kLearningRateMax));
  }
  const std::pair<absl::string_view, double> units[] = {
      {"momentum", o.momentum},
      {"adam_beta1", o.adam_beta1},
      {"adam_beta2", o.adam_beta2}};
  for (const auto& [name, value] : units) {
    if (!InUnit(value)) return Bad(name, absl::StrCat(value), "in [0, 1)");
  }
  // A smaller one is 0 as float32, and the update divides by it.
  if (!Within(o.adam_epsilon, limits::kFloatMin, limits::kFloatMax)) {
    return Bad("adam_epsilon", absl::StrCat(o.adam_epsilon),
               absl::StrCat(limits::kFloatMin, " to ", limits::kFloatMax));
  }
  if (!Within(o.lars_trust, limits::kFloatMin, limits::kFactorMax)) {
    return Bad("lars_trust", absl::StrCat(o.lars_trust),
               absl::StrCat("above 0, up to ", limits::kFactorMax));
  }
  if (!Within(o.weight_decay, 0, limits::kFactorMax)) {
    return Bad("weight_decay", absl::StrCat(o.weight_decay),
               absl::StrCat("0 to ", limits::kFactorMax));
  }
  if (!Within(o.clip_norm, 0, limits::kFloatMax)) {
    return Bad("clip_norm", absl::StrCat(o.clip_norm),
               absl::StrCat("0 (off) to ", limits::kFloatMax));
  }
  for (const std::string& spec : o.freeze) {
    COHORT_RETURN_IF_ERROR(ParseFreezeSpec(spec).status());
  }
  return ValidateSchedule(o, epochs);
}

absl::Status ValidatePositive(absl::string_view option, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return Bad(option, absl::FormatDuration(value), "a duration above 0");
}

std::string StalenessText(const StalenessOptions& staleness) {
  switch (staleness.rule) {
    case StalenessRule::kKeep:
      return "";
    case StalenessRule::kDrop:
      return absl::StrCat(", stale beyond ", staleness.versions_max,
                          " dropped");
    case StalenessRule::kScale:
      return ", stale scaled";
    case StalenessRule::kCompensate:
      return ", stale compensated";
  }
  return "";
}

}  // namespace

PolicyOptions Resolve(const PolicyOptions& policy) {
  const bool sync = policy.aggregation == AggregationKind::kSync;
  PolicyOptions resolved = policy;
  if (policy.normalization == NormalizationKind::kAuto) {
    resolved.normalization =
        sync ? NormalizationKind::kGlobal : NormalizationKind::kLocal;
  }
  if (resolved.statistics.empty()) {
    resolved.statistics.push_back(sync ? StatisticsKind::kSync
                                       : StatisticsKind::kAsync);
  }
  return resolved;
}

absl::Status Validate(const CoordinatorOptions& o) {
  if (o.workers < 1 || o.workers > limits::kWorkersMax) {
    return Bad("workers", absl::StrCat(o.workers),
               absl::StrCat("1 to ", limits::kWorkersMax));
  }
  if (!o.run_name.empty()) {
    COHORT_RETURN_IF_ERROR(CheckDnsLabel("--run_name", o.run_name));
  }
  if (o.epochs < 1 || o.epochs > limits::kEpochsMax) {
    return Bad("epochs", absl::StrCat(o.epochs),
               absl::StrCat("1 to ", limits::kEpochsMax));
  }
  if (o.partition_bytes < 4 || o.partition_bytes > limits::kPartitionBytesMax) {
    return Bad("partition_bytes", absl::StrCat(o.partition_bytes),
               absl::StrCat("4 to ", limits::kPartitionBytesMax));
  }
  if (o.checkpoint_every < 0) {
    return Bad("checkpoint_every", absl::StrCat(o.checkpoint_every),
               "0 or more");
  }
  COHORT_RETURN_IF_ERROR(ValidatePositive("lease", o.lease));
  COHORT_RETURN_IF_ERROR(ValidatePositive("step_deadline", o.step_deadline));
  COHORT_RETURN_IF_ERROR(
      ValidatePositive("replacement_deadline", o.replacement_deadline));
  if (o.reconnect_grace < absl::ZeroDuration()) {
    return Bad("reconnect_grace", absl::FormatDuration(o.reconnect_grace),
               "0 or more");
  }
  COHORT_RETURN_IF_ERROR(ValidateOptimizer(o.optimizer, o.epochs));
  return ValidatePolicy(o.policy, o.workers);
}

absl::string_view AggregationName(AggregationKind kind) {
  switch (kind) {
    case AggregationKind::kSync:
      return "sync";
    case AggregationKind::kBounded:
      return "bounded";
    case AggregationKind::kAsync:
      return "async";
  }
  return "";
}

bool MovesInTraining(StatisticsKind kind) {
  return kind != StatisticsKind::kAfter && kind != StatisticsKind::kBatch;
}

absl::string_view StatisticsName(StatisticsKind kind) {
  switch (kind) {
    case StatisticsKind::kSync:
      return "sync";
    case StatisticsKind::kAsync:
      return "async";
    case StatisticsKind::kChief:
      return "chief";
    case StatisticsKind::kAfter:
      return "after";
    case StatisticsKind::kBatch:
      return kBatchStatistics;
  }
  return "";
}

std::optional<StatisticsKind> StatisticsKindOf(absl::string_view name) {
  for (StatisticsKind kind :
       {StatisticsKind::kSync, StatisticsKind::kAsync, StatisticsKind::kChief,
        StatisticsKind::kAfter, StatisticsKind::kBatch}) {
    if (StatisticsName(kind) == name) return kind;
  }
  return std::nullopt;
}

std::string StatisticsNames(const std::vector<StatisticsKind>& kinds) {
  return absl::StrJoin(kinds, ",", [](std::string* out, StatisticsKind kind) {
    absl::StrAppend(out, StatisticsName(kind));
  });
}

std::string PolicyText(const PolicyOptions& policy) {
  const PolicyOptions p = Resolve(policy);
  std::string text(AggregationName(p.aggregation));
  if (p.pushes_min > 0) {
    absl::StrAppend(&text, " (first ", p.pushes_min, " pushes)");
  }
  if (p.aggregation == AggregationKind::kBounded) {
    absl::StrAppend(&text, " (lead up to ", p.lead_max, ")");
  }
  if (p.aggregation != AggregationKind::kSync) {
    absl::StrAppend(&text, StalenessText(p.staleness));
  }
  absl::StrAppend(
      &text, ", ",
      p.normalization == NormalizationKind::kGlobal ? "global" : "local",
      " normalisation",
      p.normalization_group == 0
          ? ""
          : absl::StrCat(" in groups of ", p.normalization_group),
      ", ",
      absl::StrJoin(p.statistics, " and ",
                    [](std::string* out, StatisticsKind kind) {
                      absl::StrAppend(out, StatisticsName(kind));
                    }),
      " statistics");
  if (p.mixture_variance) absl::StrAppend(&text, " with mixture variance");
  return text;
}

}  // namespace cohort
