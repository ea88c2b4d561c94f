#pragma once

#include <string>
#include <vector>

#include "server/ctl/study/recommendation.h"
#include "server/ctl/study/summary.h"

namespace cohort {

// A table of a report: a row a policy and kind of statistics, a column a
// condition.
struct ReportTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

// Means with confidence intervals of the measure, in percent: the best of a
// column and what is within noise of it are marked.
ReportTable MeasureTable(const StudySummary& summary,
                         const Recommendation& recommendation);
// The gap in points; without kOwnBatch.
ReportTable GapTable(const StudySummary& summary);
// Seconds of a run.
ReportTable SecondsTable(const StudySummary& summary);

// What the marks of MeasureTable mean.
extern const char kMarksText[];

}  // namespace cohort
