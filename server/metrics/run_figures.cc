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
          figures.status.workers_expected - 1);
    default:
      return std::nullopt;
  }
}

std::vector<std::pair<std::string, int64_t>> PushVerdicts(
    const RunFigures& figures) {
  const auto count = [&figures](const char* name) {
    const auto found = figures.status.counters.find(name);
    return found == figures.status.counters.end() ? 0 : found->second;
  };
  // The core counts a damped push as applied too.
  const int64_t damped = count("pushes_damped");
  return {{"applied", count("pushes_applied") - damped},
          {"damped", damped},
          {"dropped", count("pushes_dropped")},
          {"skipped", count("pushes_skipped")},
          {"rejected_nonfinite", count("pushes_rejected_nonfinite")},
          {"duplicate", count("pushes_duplicate")},
          {"replay_mismatch", count("replay_mismatches")},
          {"fenced", figures.service.pushes_fenced},
          {"invalid", figures.service.pushes_invalid}};
}

}  // namespace cohort
