#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// The data that a study reads from a run.
struct RunResult {
  // The main measure of this data set: "accuracy" or "mIoU".
  std::string measure;
  // At the end of the run, by kind of statistics, including kOwnBatch.
  std::map<std::string, double> percent;
  // Time until the last row of its history.
  double seconds = 0;

  // The improvement if each batch is normalised by its own statistics;
  // percentage points.
  double Gap(const std::string& kind) const;
};

// Parses the content of a run's history.csv.
// Errors: DataLoss naming what is missing or not a number: a column, a kind of
//   `kinds`, kOwnBatch.
absl::StatusOr<RunResult> ParseRunResult(const std::vector<std::string>& kinds,
                                         absl::string_view history);

// Reads the history of the run in `folder`.
// Errors: those of ParseRunResult and FileSystem.
absl::StatusOr<RunResult> ReadRunResult(const std::vector<std::string>& kinds,
                                        const std::string& folder);

}  // namespace cohort
