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

// What a study takes from a run.
struct RunResult {
  // What runs of this data set are judged by: "accuracy" or "mIoU".
  std::string measure;
  // By kind of statistics, kOwnBatch among them; never empty, in order of time.
  std::map<std::string, std::vector<CurvePoint>> curves;
  // Empty under sync.
  StalenessCounts staleness;
  // Until the last row of its history.
  double seconds = 0;

  // At the end of the run.
  double Final(const std::string& kind) const {
    return curves.at(kind).back().measure;
  }
  // How much more the weights are worth when each batch is normalised by its
  // own statistics; percentage points.
  double Gap(const std::string& kind) const;
  // When an evaluation first reached `target` percent; absent: none did, or
  // there is one point only (`after` is known at the end and not on the way).
  std::optional<double> SecondsTo(const std::string& kind, double target) const;
};

// From the content of a run's history.csv and staleness.csv ("" if it has
// none).
// Errors: DataLoss naming what is missing or no number: a column, a kind of
//   `kinds`, kOwnBatch.
absl::StatusOr<RunResult> ParseRunResult(const std::vector<std::string>& kinds,
                                         absl::string_view history,
                                         absl::string_view staleness);

// Reads the files of the run in `folder`.
// Errors: those above, and of FileSystem.
absl::StatusOr<RunResult> ReadRunResult(const std::vector<std::string>& kinds,
                                        const std::string& folder);

}  // namespace cohort
