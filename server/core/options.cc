#include "server/core/options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status Bad(absl::string_view option, absl::string_view seen,
                 absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", option, ": got ", seen, ", want ", wanted));
}

absl::Status ValidatePolicy(const PolicyOptions& policy) {
  if (policy.aggregation != AggregationKind::kAsync) return absl::OkStatus();
  if (policy.normalization == NormalizationKind::kGlobal) {
    return Bad("normalization", "global",
               "local or auto with --aggregation=async: a rendezvous of all "
               "workers needs --aggregation=sync");
  }
  if (policy.statistics == StatisticsKind::kSync) {
    return Bad("bn_statistics", "sync",
               "async, chief or auto with --aggregation=async: combined "
               "statistics need --aggregation=sync");
  }
  return absl::OkStatus();
}

absl::Status ValidateOptimizer(const OptimizerOptions& o) {
  if (!(o.learning_rate > 0) || !std::isfinite(o.learning_rate)) {
    return Bad("learning_rate", absl::StrCat(o.learning_rate), "above 0");
  }
  if (!(o.momentum >= 0 && o.momentum < 1)) {
    return Bad("momentum", absl::StrCat(o.momentum), "in [0, 1)");
  }
  if (!(o.weight_decay >= 0) || !std::isfinite(o.weight_decay)) {
    return Bad("weight_decay", absl::StrCat(o.weight_decay), "0 or more");
  }
  return absl::OkStatus();
}

absl::Status ValidatePositive(absl::string_view option, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return Bad(option, absl::FormatDuration(value), "a duration above 0");
}

}  // namespace

PolicyOptions Resolve(const PolicyOptions& policy) {
  const bool sync = policy.aggregation == AggregationKind::kSync;
  PolicyOptions resolved = policy;
  if (policy.normalization == NormalizationKind::kAuto) {
    resolved.normalization =
        sync ? NormalizationKind::kGlobal : NormalizationKind::kLocal;
  }
  if (policy.statistics == StatisticsKind::kAuto) {
    resolved.statistics = sync ? StatisticsKind::kSync : StatisticsKind::kAsync;
  }
  return resolved;
}

absl::Status Validate(const CoordinatorOptions& o) {
  if (o.workers < 1 || o.workers > 4096) {
    return Bad("workers", absl::StrCat(o.workers), "1 to 4096");
  }
  if (o.epochs < 1) return Bad("epochs", absl::StrCat(o.epochs), "1 or more");
  if (o.partition_bytes < 4) {
    return Bad("partition_bytes", absl::StrCat(o.partition_bytes), "4 or more");
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
  COHORT_RETURN_IF_ERROR(ValidateOptimizer(o.optimizer));
  return ValidatePolicy(o.policy);
}

std::string PolicyText(const PolicyOptions& policy) {
  const PolicyOptions p = Resolve(policy);
  absl::string_view statistics = "sync";
  if (p.statistics == StatisticsKind::kAsync) statistics = "async";
  if (p.statistics == StatisticsKind::kChief) statistics = "chief";
  return absl::StrCat(
      p.aggregation == AggregationKind::kSync ? "sync" : "async", ", ",
      p.normalization == NormalizationKind::kGlobal ? "global" : "local",
      " normalisation, ", statistics, " statistics");
}

}  // namespace cohort
