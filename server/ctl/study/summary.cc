#include "server/ctl/study/summary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {
namespace {

constexpr double kTargetShare = 0.9;

StudyCell& CellOf(const StudyRun& run, const std::string& kind,
                  std::vector<StudyCell>& cells) {
  for (StudyCell& cell : cells) {
    if (cell.condition == run.condition && cell.policy == run.policy &&
        cell.kind == kind) {
      return cell;
    }
  }
  cells.push_back(
      {.condition = run.condition, .policy = run.policy, .kind = kind});
  return cells.back();
}

std::vector<std::string> KindsOf(const StudyRun& run) {
  std::vector<std::string> kinds = run.kinds;
  kinds.emplace_back(kOwnBatch);
  return kinds;
}

std::map<std::string, double> BestMeans(const std::vector<StudyCell>& cells) {
  std::map<std::string, double> best;
  for (const StudyCell& cell : cells) {
    if (cell.kind == kOwnBatch) continue;
    double& value = best[cell.condition.order];
    value = std::max(value, EstimateMean(cell.measure).mean);
  }
  return best;
}

// Without seeds that never reached it, the mean would look faster than it is.
void KeepIfAllReached(StudyCell& cell) {
  if (cell.seconds_to_target.size() < cell.measure.size()) {
    cell.seconds_to_target.clear();
  }
}

}  // namespace

std::string StudyCell::Text() const {
  return absl::StrCat(policy.Text(), ", ", kind,
                      kind == kOwnBatch ? "'s own statistics" : " statistics");
}

StudySummary Summarise(absl::Span<const FinishedRun> runs,
                       std::optional<double> target) {
  COHORT_CHECK(!runs.empty(), "no runs");
  StudySummary summary{.measure = runs.front().result.measure};
  for (const auto& [run, result] : runs) {
    for (const std::string& kind : KindsOf(run)) {
      StudyCell& cell = CellOf(run, kind, summary.cells);
      cell.measure[run.seed] = result.Final(kind);
      cell.gap[run.seed] = result.Gap(kind);
      cell.seconds[run.seed] = result.seconds;
    }
    for (const auto& [versions, pushes] : result.staleness) {
      summary.staleness[{run.policy, run.condition}][versions] += pushes;
    }
  }
  summary.target = BestMeans(summary.cells);
  for (auto& [order, value] : summary.target) {
    value = target.value_or(kTargetShare * value);
  }
  for (const auto& [run, result] : runs) {
    for (const std::string& kind : KindsOf(run)) {
      const std::optional<double> seconds =
          result.SecondsTo(kind, summary.target.at(run.condition.order));
      if (!seconds.has_value()) continue;
      CellOf(run, kind, summary.cells).seconds_to_target[run.seed] = *seconds;
    }
  }
  for (StudyCell& cell : summary.cells) KeepIfAllReached(cell);
  return summary;
}

std::vector<ConditionCells> ByCondition(const StudySummary& summary) {
  std::vector<ConditionCells> groups;
  for (const StudyCell& cell : summary.cells) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&cell](const ConditionCells& candidate) {
                                return candidate.condition == cell.condition;
                              });
    if (group == groups.end()) {
      groups.push_back({.condition = cell.condition});
      group = groups.end() - 1;
    }
    group->cells.push_back(&cell);
  }
  return groups;
}

}  // namespace cohort
