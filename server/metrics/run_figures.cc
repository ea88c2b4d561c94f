#include "server/metrics/run_figures.h"

namespace cohort {

CheckpointFigures::CheckpointFigures()
    : duration_seconds(DoublingBounds(0.01, 330)) {}

std::string NormalizationName(const PolicyOptions& policy) {
  return policy.normalization == NormalizationKind::kGlobal ? "global"
                                                            : "local";
}

std::optional<int64_t> StalenessBound(const RunFigures& figures) {
  const PolicyOptions& policy = figures.policy_options;
  if (policy.aggregation == AggregationKind::kSync) return 0;
  switch (policy.staleness.rule) {
    case StalenessRule::kDrop:
      return policy.staleness.versions_max;
    case StalenessRule::kScale:
      return policy.staleness.versions_free.value_or(
          (figures.status.elastic() ? figures.status.workers_live
                                    : figures.status.workers_expected) -
          1);
    default:
      return std::nullopt;
  }
}

std::vector<std::pair<std::string, int64_t>> PushVerdicts(
    const RunFigures& figures) {
  const RunCounts& counts = figures.status.counts;
  return {{"applied", counts.pushes_applied - counts.pushes_damped},
          {"damped", counts.pushes_damped},
          {"dropped", counts.pushes_dropped},
          {"skipped", counts.pushes_skipped},
          {"rejected_nonfinite", counts.pushes_rejected_nonfinite},
          {"duplicate", counts.pushes_duplicate},
          {"replay_mismatch", counts.replay_mismatches},
          {"fenced", figures.service.pushes_fenced},
          {"invalid", figures.service.pushes_invalid}};
}

}  // namespace cohort
