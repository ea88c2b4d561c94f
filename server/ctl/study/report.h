#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/ctl/study/recommendation.h"
#include "server/ctl/study/study_plots.h"
#include "server/ctl/study/summary.h"

namespace cohort {

// The contents of a study's report.
struct StudyReport {
  // The command that ran the study, so that it can be repeated.
  std::string command;
  StudySummary summary;
  std::vector<FinishedRun> runs;
  // Sentences that say what is missing, and why.
  std::vector<std::string> left_out;
};

// One line a run and kind of statistics.
std::string ToCsv(const StudyReport& report);

// The text of each file. The Markdown names `plots`; the HTML contains them, so
// that it is one page that needs no other file.
std::string ToMarkdown(const StudyReport& report,
                       const Recommendation& recommendation,
                       absl::Span<const StudyPlot> plots);
std::string ToHtml(const StudyReport& report,
                   const Recommendation& recommendation,
                   absl::Span<const StudyPlot> plots);

}  // namespace cohort
