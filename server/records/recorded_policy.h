#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/settings/options.h"
#include "server/core/settings/settings.h"

namespace cohort {

// The changes of settings in policy.csv.
struct RecordedPolicy {
  // All settings at its start.
  SettingValues start;
  // Ascending by version.
  std::vector<PlannedChange> changes;
};

// Reads the policy.csv of RunRecorder.
// Errors: InvalidArgument naming the line: no such table, or an unknown
// setting;
//   the file cannot be read.
absl::StatusOr<RecordedPolicy> ReadPolicyTable(const std::string& path);

// The changes of `recorded`, for a run that starts with `options`. Logs a
// warning if that differs from how the recorded run started.
// Errors: InvalidArgument: a change does not fit `options`.
absl::StatusOr<std::vector<PlannedChange>> PlanRecorded(
    RecordedPolicy recorded, const CoordinatorOptions& options);

}  // namespace cohort
