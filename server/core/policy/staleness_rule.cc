#include "server/core/policy/staleness_rule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cohort {

StalenessDecision DecideStaleness(const StalenessOptions& options,
                                  int64_t staleness_versions, int32_t workers) {
  StalenessDecision decision;
  switch (options.rule) {
    case StalenessRule::kKeep:
      break;
    case StalenessRule::kDrop:
      if (staleness_versions > options.versions_max) {
        decision.drop = true;
        decision.reason =
            absl::StrCat("it was computed from weights ", staleness_versions,
                         " versions old, want at most ", options.versions_max);
      }
      break;
    case StalenessRule::kScale: {
      const int64_t free = options.versions_free.value_or(workers - 1);
      const int64_t beyond = std::max<int64_t>(0, staleness_versions - free);
      decision.weight = 1.0 / (1.0 + static_cast<double>(beyond));
      break;
    }
    case StalenessRule::kCompensate:
      decision.compensate = staleness_versions > 0;
      break;
  }
  return decision;
}

}  // namespace cohort
