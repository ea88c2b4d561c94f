#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// Counters of this server process: they only rise.
struct RunCounts {
  // Damped pushes included.
  int64_t pushes_applied = 0;
  int64_t pushes_damped = 0;
  int64_t pushes_dropped = 0;
  // Pushes of steps that were not finite (sync), and single ones (async).
  int64_t pushes_skipped = 0;
  int64_t pushes_rejected_nonfinite = 0;
  // Repeated messages, and those of them whose content differs.
  int64_t pushes_duplicate = 0;
  int64_t replay_mismatches = 0;
  // Attempts that were repeated, and those of them because a rank reached a
  // batch-norm call that was completed without it.
  int64_t steps_aborted = 0;
  int64_t steps_repeated_for_order = 0;
  int64_t workers_lost = 0;
  int64_t policy_changes = 0;
};

// The counts by the names of their fields, as the protocol carries them.
std::map<std::string, int64_t> ByName(const RunCounts& counts);

// Why a rank became vacant.
enum class VacancyReason {
  kLease,
  kDisconnect,
  kDeadline,
  kAdmin,
  kLeft,
  // It reported other batch-norm calls than it had made.
  kMismatch,
};

inline constexpr VacancyReason kVacancyReasons[] = {
    VacancyReason::kLease,    VacancyReason::kDisconnect,
    VacancyReason::kDeadline, VacancyReason::kAdmin,
    VacancyReason::kLeft,     VacancyReason::kMismatch};

// "lease", "disconnect", "deadline", "admin", "left", "mismatch".
absl::string_view VacancyReasonName(VacancyReason reason);

// Pushes whose moments went into the moving statistics in full, damped, or not
// at all.
struct StatisticsCounts {
  int64_t folded = 0;
  int64_t damped = 0;
  int64_t dropped = 0;
};

}  // namespace cohort
