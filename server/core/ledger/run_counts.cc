#include "server/core/ledger/run_counts.h"

#include <cstddef>

namespace cohort {

std::map<std::string, int64_t> ByName(const RunCounts& counts) {
  return {{"pushes_applied", counts.pushes_applied},
          {"pushes_damped", counts.pushes_damped},
          {"pushes_dropped", counts.pushes_dropped},
          {"pushes_skipped", counts.pushes_skipped},
          {"pushes_rejected_nonfinite", counts.pushes_rejected_nonfinite},
          {"pushes_duplicate", counts.pushes_duplicate},
          {"replay_mismatches", counts.replay_mismatches},
          {"steps_aborted", counts.steps_aborted},
          {"steps_repeated_for_order", counts.steps_repeated_for_order},
          {"workers_lost", counts.workers_lost},
          {"policy_changes", counts.policy_changes}};
}

absl::string_view VacancyReasonName(VacancyReason reason) {
  constexpr absl::string_view kNames[] = {"lease", "disconnect", "deadline",
                                          "admin", "left",       "mismatch"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace cohort
