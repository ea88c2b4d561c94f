#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/ctl/study/recommendation.h"
#include "server/ctl/study/study_plots.h"
#include "server/ctl/study/summary.h"

namespace cohort {

// All that a study tells, ready to be written.
struct StudyReport {
  // What made it, to be typed again.
  std::string command;
  StudySummary summary;
  std::vector<FinishedRun> runs;
  // Sentences: what is missing, and why.
  std::vector<std::string> left_out;
};

// One line a run and kind of statistics.
std::string ToCsv(const StudyReport& report);

// The files' texts; `plots` are named in the first and part of the second,
// which is one page that needs no other file.
std::string ToMarkdown(const StudyReport& report,
                       const Recommendation& recommendation,
                       absl::Span<const StudyPlot> plots);
std::string ToHtml(const StudyReport& report,
                   const Recommendation& recommendation,
                   absl::Span<const StudyPlot> plots);

}  // namespace cohort
