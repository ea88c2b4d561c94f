#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/measures/staleness_histogram.h"

namespace cohort {

// One evaluation of the test split.
struct CurvePoint {
  int64_t samples = 0;
  // Since the run's start.
  double seconds = 0;
  // In percent.
  double measure = 0;
};

// The data that a study reads from a run.
struct RunResult {
  // The main measure of this data set: "accuracy" or "mIoU".
  std::string measure;
  // By kind of statistics, including kOwnBatch; never empty, in order of time.
  std::map<std::string, std::vector<CurvePoint>> curves;
  // Empty under sync.
  StalenessCounts staleness;
  // Time until the last row of its history.
  double seconds = 0;

  // The measure at the end of the run.
  double Final(const std::string& kind) const {
    return curves.at(kind).back().measure;
  }
  // The improvement if each batch is normalised by its own statistics;
  // percentage points.
  double Gap(const std::string& kind) const;
  // The time at which an evaluation first reached `target` percent. Absent if
  // none did, or if there is only one point (`after` is known only at the end).
  std::optional<double> SecondsTo(const std::string& kind, double target) const;
};

// Parses the content of a run's history.csv and staleness.csv ("" if it has
// none).
// Errors: DataLoss naming what is missing or not a number: a column, a kind of
//   `kinds`, kOwnBatch.
absl::StatusOr<RunResult> ParseRunResult(const std::vector<std::string>& kinds,
                                         absl::string_view history,
                                         absl::string_view staleness);

// Reads the files of the run in `folder`.
// Errors: those of ParseRunResult and FileSystem.
absl::StatusOr<RunResult> ReadRunResult(const std::vector<std::string>& kinds,
                                        const std::string& folder);

}  // namespace cohort
