#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/measures/staleness_histogram.h"
#include "server/ctl/study/estimate.h"
#include "server/ctl/study/matrix.h"
#include "server/ctl/study/run_result.h"

namespace cohort {

// The result of one run.
struct FinishedRun {
  StudyRun run;
  RunResult result;
};

// A policy with one kind of statistics, under one condition; values by seed.
struct StudyCell {
  StudyCondition condition;
  StudyPolicy policy;
  // A kind of statistics, or kOwnBatch.
  std::string kind;
  // Percent, at the end of the run.
  SeedValues measure;
  // Percentage points by which the batch's own statistics are better.
  SeedValues gap;
  // Duration of the whole run.
  SeedValues seconds;
  // Time until the target; only if every seed reached it.
  SeedValues seconds_to_target;

  // "async, local, chief statistics".
  std::string Text() const;
};

struct StudySummary {
  // "accuracy" or "mIoU".
  std::string measure;
  // Percent; by order of data, because a target may be hard in one order and
  // easy in another.
  std::map<std::string, double> target;
  // In the order of the runs; kinds as in the runs, with kOwnBatch last.
  std::vector<StudyCell> cells;
  // For each policy that is not sync: pushes of all seeds.
  std::map<std::pair<StudyPolicy, StudyCondition>, StalenessCounts> staleness;
};

// The cells of one condition, which are compared with each other.
struct ConditionCells {
  StudyCondition condition;
  std::vector<const StudyCell*> cells;
};

// `target` is in percent; if absent, it is 90 % of the best mean under the same
// order of data. `runs` must not be empty and must be of one data set.
StudySummary Summarise(absl::Span<const FinishedRun> runs,
                       std::optional<double> target);

// In the order of the cells. Refers to `summary`.
std::vector<ConditionCells> ByCondition(const StudySummary& summary);

}  // namespace cohort
