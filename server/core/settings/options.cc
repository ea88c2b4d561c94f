#include "server/core/settings/options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/assignment.h"
#include "common/dns_label.h"
#include "common/flags/flag_table.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "server/core/settings/freeze_spec.h"
#include "server/core/settings/setting_kinds.h"
#include "server/core/settings/settings.h"

namespace cohort {
namespace {

// The limits of the flag `name`, which have its words.
const FlagLimits& WordsOf(absl::string_view name) {
  return FindFlag(ServerFlagTable(), name)->limits;
}

absl::Status Bad(absl::string_view option, absl::string_view seen,
                 absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", option, ": got ", seen, ", want ", wanted));
}

absl::Status ValidateStatistics(const PolicyOptions& policy) {
  const std::vector<StatisticsKind>& kinds = policy.statistics;
  for (StatisticsKind kind : kinds) {
    if (std::ranges::count(kinds, kind) > 1) {
      return Bad("bn_statistics", StatisticsNames(kinds),
                 "auto, or each kind at most once");
    }
  }
  if (!kinds.empty() && kinds.front() == StatisticsKind::kBatch) {
    return Bad("bn_statistics", StatisticsNames(kinds),
               "another kind first: batch keeps no statistics to export");
  }
  if (policy.aggregation == AggregationKind::kSync) return absl::OkStatus();
  if (policy.Keeps(StatisticsKind::kSync)) {
    return Bad("bn_statistics", "sync",
               absl::StrCat("async, chief, after or auto with --aggregation=",
                            AggregationName(policy.aggregation),
                            ": combined statistics need --aggregation=sync"));
  }
  return absl::OkStatus();
}

absl::Status ValidateGroup(const PolicyOptions& policy, int32_t workers) {
  const int32_t size = policy.normalization_group;
  if (size == 0) return absl::OkStatus();
  if (size < 2 || size > workers) {
    return Bad("normalization_group", absl::StrCat(size),
               absl::StrCat("0 (all workers) or 2 to ", workers,
                            " (--workers); for groups of one worker use "
                            "--normalization=local"));
  }
  if (Resolve(policy).normalization == NormalizationKind::kGlobal) {
    return absl::OkStatus();
  }
  return Bad("normalization_group", absl::StrCat(size),
             "0 with local normalisation: groups need --aggregation=sync and "
             "--normalization=global or auto");
}

// Refuses what takes a push for a gradient, and what needs workers that meet.
absl::Status ValidateLocalSteps(const CoordinatorOptions& o) {
  const PolicyOptions& policy = o.policy;
  if (policy.local_steps == 0) return absl::OkStatus();
  const auto refuse = [&policy](absl::string_view option,
                                absl::string_view seen,
                                absl::string_view wanted) {
    return Bad(option, seen,
               absl::StrCat(wanted, " with --local_steps=", policy.local_steps,
                            " (0: off)"));
  };
  if (policy.aggregation != AggregationKind::kSync) {
    return refuse("aggregation", AggregationName(policy.aggregation), "sync");
  }
  if (policy.normalization == NormalizationKind::kGlobal) {
    return refuse("normalization", "global",
                  "local or auto: workers do not meet within a step");
  }
  for (const StatisticsKind kind :
       {StatisticsKind::kAsync, StatisticsKind::kChief}) {
    if (!policy.Keeps(kind)) continue;
    return refuse("bn_statistics", StatisticsName(kind),
                  "sync, after or batch");
  }
  const OptimizerOptions& optimizer = o.optimizer;
  if (optimizer.kind == OptimizerKind::kLars ||
      optimizer.kind == OptimizerKind::kLamb) {
    return refuse("optimizer", OptimizerName(optimizer.kind),
                  "a rule without layer-wise rates");
  }
  if (optimizer.clip_norm != 0) {
    return refuse("clip_norm", absl::StrCat(optimizer.clip_norm),
                  "0: what is pushed is no gradient");
  }
  if (optimizer.weight_decay != 0) {
    return refuse("weight_decay", absl::StrCat(optimizer.weight_decay),
                  "0: the local optimizer decays the weights");
  }
  if (!optimizer.freeze.empty()) {
    return refuse("freeze", optimizer.freeze.front(),
                  "none: local steps would move what only the server keeps");
  }
  return absl::OkStatus();
}

// A setting under which other shares give other results; empty: none.
std::string DependsOnShares(const PolicyOptions& policy) {
  const PolicyOptions p = Resolve(policy);
  if (p.local_steps > 0) return absl::StrCat("--local_steps=", p.local_steps);
  if (p.aggregation != AggregationKind::kSync) {
    return absl::StrCat("--aggregation=", AggregationName(p.aggregation));
  }
  if (p.normalization == NormalizationKind::kLocal) {
    return "--normalization=local";
  }
  if (p.normalization_group > 0) {
    return absl::StrCat("--normalization_group=", p.normalization_group);
  }
  if (p.pushes_min > 0) return absl::StrCat("--min_pushes=", p.pushes_min);
  if (p.mixture_variance) return "--bn_mixture_variance";
  for (const StatisticsKind kind :
       {StatisticsKind::kAsync, StatisticsKind::kChief}) {
    if (p.Keeps(kind)) {
      return absl::StrCat("--bn_statistics=", StatisticsName(kind));
    }
  }
  return "";
}

absl::Status ValidateShares(const PolicyOptions& policy, int32_t workers) {
  const ShareOptions& shares = policy.shares;
  if (!shares.given()) return absl::OkStatus();
  const std::string text = setting_kinds::Shares::Print(shares);
  if (!shares.weights.empty() &&
      static_cast<int64_t>(shares.weights.size()) != workers) {
    return Bad("shares", text,
               absl::StrCat("none, or ", workers,
                            " weights, one for each rank (--workers)"));
  }
  const std::string obstacle = DependsOnShares(policy);
  if (obstacle.empty()) return absl::OkStatus();
  return Bad("shares", text,
             absl::StrCat("none with ", obstacle,
                          ", whose results depend on which worker has which "
                          "samples; shares need --aggregation=sync, all pushes "
                          "and batch statistics of all workers"));
}

absl::Status ValidatePolicy(const PolicyOptions& policy, int32_t workers) {
  if (policy.pushes_min > workers) {
    return Bad("min_pushes", absl::StrCat(policy.pushes_min),
               absl::StrCat("0 (all) to ", workers, " (--workers)"));
  }
  if (policy.global_batch != 0 && policy.global_batch < workers) {
    return Bad("global_batch", absl::StrCat(policy.global_batch),
               absl::StrCat("sum, or at least ", workers,
                            ": a sample for each worker (--workers)"));
  }
  COHORT_RETURN_IF_ERROR(ValidateStatistics(policy));
  COHORT_RETURN_IF_ERROR(ValidateGroup(policy, workers));
  COHORT_RETURN_IF_ERROR(ValidateShares(policy, workers));
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

absl::Status ValidateSchedule(const OptimizerOptions& o, int64_t epochs) {
  double before = 0;
  for (double milestone : o.step_epochs) {
    if (milestone > before && std::isfinite(milestone)) {
      before = milestone;
      continue;
    }
    return Bad("step_epochs", absl::StrJoin(o.step_epochs, ","),
               "epochs above 0 in ascending order");
  }
  if (o.schedule == ScheduleKind::kStep && o.step_epochs.empty()) {
    return Bad("step_epochs", "none",
               "at least one milestone with --schedule=step");
  }
  const double last =
      o.learning_rate *
      std::pow(o.step_gamma, static_cast<double>(o.step_epochs.size()));
  if (o.schedule == ScheduleKind::kStep &&
      !(last <= limits::kLearningRateMax)) {
    return Bad(
        "step_gamma",
        absl::StrCat(o.step_gamma, " (a learning rate of ", last, " after ",
                     o.step_epochs.size(), " steps)"),
        absl::StrCat("a learning rate of at most ", limits::kLearningRateMax));
  }
  if (o.warmup_epochs > static_cast<double>(epochs)) {
    return Bad("warmup_epochs", absl::StrCat(o.warmup_epochs),
               absl::StrCat("0 to ", epochs, " (--epochs)"));
  }
  return absl::OkStatus();
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
    resolved.normalization = sync && policy.local_steps == 0
                                 ? NormalizationKind::kGlobal
                                 : NormalizationKind::kLocal;
  }
  if (resolved.statistics.empty()) {
    resolved.statistics.push_back(sync ? StatisticsKind::kSync
                                       : StatisticsKind::kAsync);
  }
  return resolved;
}

void TakeOuterDefaults(CoordinatorOptions& options) {
  if (options.policy.local_steps == 0) return;
  const auto take = [&options](absl::string_view name, double& value,
                               double outer) {
    if (!options.given.contains(std::string(name))) value = outer;
  };
  OptimizerOptions& optimizer = options.optimizer;
  take("learning_rate", optimizer.learning_rate, 0.7);
  take("momentum", optimizer.numbers.momentum, 0.9);
  take("weight_decay", optimizer.weight_decay, 0);
}

void TakeImplied(CoordinatorOptions& options) {
  if (options.elastic() && !options.given.contains("on_worker_loss")) {
    options.on_worker_loss = OnWorkerLoss::kContinue;
  }
  ShareOptions& shares = options.policy.shares;
  if (shares.automatic &&
      shares.weights.size() != static_cast<size_t>(options.workers)) {
    shares.weights.clear();
  }
}

std::string WorkersText(const CoordinatorOptions& options) {
  return setting_kinds::CohortSize::Print(options.size());
}

absl::Status Validate(const CoordinatorOptions& o) {
  COHORT_RETURN_IF_ERROR(CheckSettingLimits(o));
  if (o.elastic() && o.on_worker_loss == OnWorkerLoss::kWait) {
    return Bad("on_worker_loss", "wait",
               absl::StrCat("continue with --workers=", WorkersText(o),
                            ": an elastic cohort takes in another worker "
                            "instead of waiting for a lost one"));
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
  for (const std::string& spec : o.optimizer.freeze) {
    COHORT_RETURN_IF_ERROR(ParseFreezeSpec(spec).status());
  }
  COHORT_RETURN_IF_ERROR(ValidateSchedule(o.optimizer, o.epochs));
  COHORT_RETURN_IF_ERROR(ValidateLocalSteps(o));
  return ValidatePolicy(o.policy, o.workers);
}

absl::string_view AggregationName(AggregationKind kind) {
  return WordsOf("aggregation").words[static_cast<size_t>(kind)];
}

bool MovesInTraining(StatisticsKind kind) {
  return kind != StatisticsKind::kAfter && kind != StatisticsKind::kBatch;
}

absl::string_view StatisticsName(StatisticsKind kind) {
  if (kind == StatisticsKind::kAverage) return kAverageStatistics;
  return WordsOf("bn_statistics").entries[static_cast<size_t>(kind)];
}

std::optional<StatisticsKind> StatisticsKindOf(absl::string_view name) {
  StatisticsKind kind = StatisticsKind::kAverage;
  if (name == kAverageStatistics ||
      setting_kinds::ReadWord(name, WordsOf("bn_statistics").entries, kind)) {
    return kind;
  }
  return std::nullopt;
}

std::string StatisticsNames(const std::vector<StatisticsKind>& kinds,
                            absl::string_view separator) {
  return absl::StrJoin(kinds, separator,
                       [](std::string* out, StatisticsKind kind) {
                         absl::StrAppend(out, StatisticsName(kind));
                       });
}

bool RoundsChanges(const PolicyOptions& policy) {
  return policy.aggregation == AggregationKind::kSync &&
         policy.wire == ElementType::kBFloat16;
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
  const bool sync = p.aggregation == AggregationKind::kSync;
  if (!sync) absl::StrAppend(&text, StalenessText(p.staleness));
  if (p.local_steps > 0) {
    absl::StrAppend(&text, ", ", p.local_steps, " local steps");
  }
  if (p.global_batch > 0) {
    absl::StrAppend(
        &text, ", ", p.global_batch,
        sync ? " samples a step" : " samples in a push of each worker");
  }
  if (p.shares.given()) {
    absl::StrAppend(&text, ", shares ", setting_kinds::Shares::Print(p.shares));
  }
  absl::StrAppend(
      &text, ", ",
      p.normalization == NormalizationKind::kGlobal ? "global" : "local",
      " normalisation",
      p.normalization_group == 0
          ? ""
          : absl::StrCat(" in groups of ", p.normalization_group),
      ", ", StatisticsNames(p.statistics, " and "), " statistics");
  if (p.mixture_variance) absl::StrAppend(&text, " with mixture variance");
  if (p.wire == ElementType::kBFloat16) {
    absl::StrAppend(&text, ", gradients",
                    RoundsChanges(p) ? " and weights" : "", " in bf16");
  }
  return text;
}

}  // namespace cohort
