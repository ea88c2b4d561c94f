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

// Means of the measure with confidence intervals, in percent. The best of a
// column and the values that tie with it are marked.
ReportTable MeasureTable(const StudySummary& summary,
                         const Recommendation& recommendation);
// The gap in points; without kOwnBatch.
ReportTable GapTable(const StudySummary& summary);
// Seconds of a run.
ReportTable SecondsTable(const StudySummary& summary);

// Explains the marks of MeasureTable.
extern const char kMarksText[];

}  // namespace cohort
