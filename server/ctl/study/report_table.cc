#include "server/ctl/study/report_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/ctl/study/estimate.h"

namespace cohort {
namespace {

constexpr char kBestMark[] = " (best)";
constexpr char kNoiseMark[] = " (=)";

std::vector<StudyCondition> ConditionsOf(const StudySummary& summary) {
  std::vector<StudyCondition> conditions;
  for (const StudyCell& cell : summary.cells) {
    if (std::find(conditions.begin(), conditions.end(), cell.condition) ==
        conditions.end()) {
      conditions.push_back(cell.condition);
    }
  }
  return conditions;
}

// The text of one cell; if empty, a dash is shown.
using CellText = std::function<std::string(const StudyCell&)>;

// With `by_kind` there is a row for each kind of statistics; otherwise all
// kinds of a run have the same value.
ReportTable TableOf(const StudySummary& summary, bool by_kind,
                    const CellText& text_of) {
  const std::vector<StudyCondition> conditions = ConditionsOf(summary);
  ReportTable table{.header = {"policy", "statistics"}};
  for (const StudyCondition& condition : conditions) {
    table.header.push_back(condition.Text());
  }
  std::vector<std::pair<StudyPolicy, std::string>> keys;
  for (const StudyCell& cell : summary.cells) {
    const std::string text = text_of(cell);
    if (text.empty()) continue;
    const std::pair<StudyPolicy, std::string> key = {
        cell.policy, by_kind ? cell.kind : "all"};
    auto at = std::find(keys.begin(), keys.end(), key);
    if (at == keys.end()) {
      keys.push_back(key);
      table.rows.push_back({cell.policy.Text(), key.second});
      table.rows.back().resize(table.header.size(), "-");
      at = keys.end() - 1;
    }
    const auto column =
        std::find(conditions.begin(), conditions.end(), cell.condition) -
        conditions.begin();
    table.rows[static_cast<size_t>(at - keys.begin())]
              [static_cast<size_t>(2 + column)] = text;
  }
  return table;
}

const char* MarkOf(const StudyCell& cell,
                   const Recommendation& recommendation) {
  for (const Advice& advice : recommendation.by_condition) {
    if (advice.best == &cell) return kBestMark;
    for (const Standing& standing : advice.standings) {
      if (standing.cell == &cell && standing.within_noise) return kNoiseMark;
    }
  }
  return "";
}

}  // namespace

const char kMarksText[] =
    "(best): the highest mean of its column; (=): ties with it. Batch, "
    "evaluation with each batch's own statistics, is no candidate.";

ReportTable MeasureTable(const StudySummary& summary,
                         const Recommendation& recommendation) {
  return TableOf(summary, /*by_kind=*/true,
                 [&recommendation](const StudyCell& cell) {
                   return absl::StrCat(ToText(EstimateMean(cell.measure), 1),
                                       MarkOf(cell, recommendation));
                 });
}

ReportTable GapTable(const StudySummary& summary) {
  return TableOf(summary, /*by_kind=*/true, [](const StudyCell& cell) {
    return cell.kind == kOwnBatch ? "" : ToText(EstimateMean(cell.gap), 1);
  });
}

ReportTable SecondsTable(const StudySummary& summary) {
  return TableOf(summary, /*by_kind=*/false, [](const StudyCell& cell) {
    return ToText(EstimateMean(cell.seconds), 0);
  });
}

}  // namespace cohort
