#include "server/ctl/study/recommendation.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace cohort {
namespace {

// Percentage points.
constexpr double kToleranceMax = 1;

// Orders the kinds among equals of one run: kinds that need no extra pass over
// data come first; the kind that sees only one worker's images comes last.
int64_t Preference(const std::string& kind) {
  constexpr std::array<const char*, 4> kOrder = {"sync", "async", "after",
                                                 "chief"};
  return std::find(kOrder.begin(), kOrder.end(), kind) - kOrder.begin();
}

double MeanOf(const SeedValues& values) { return EstimateMean(values).mean; }

// Cheaper first.
bool IsCheaper(const StudyCell* a, const StudyCell* b) {
  if (a->policy == b->policy) {
    return Preference(a->kind) < Preference(b->kind);
  }
  return MeanOf(a->seconds) < MeanOf(b->seconds);
}

Advice AdviseOn(const ConditionCells& group) {
  Advice advice{.condition = group.condition};
  std::vector<const StudyCell*> candidates = group.cells;
  std::erase_if(candidates,
                [](const StudyCell* cell) { return cell->kind == kOwnBatch; });
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const StudyCell* a, const StudyCell* b) {
                     return MeanOf(a->measure) > MeanOf(b->measure);
                   });
  advice.best = candidates.front();
  for (const StudyCell* cell : candidates) {
    Standing standing{.cell = cell,
                      .deficit = Compare(advice.best->measure, cell->measure)};
    standing.within_noise =
        cell == advice.best || standing.deficit.WithinNoise();
    standing.as_good = standing.within_noise &&
                       standing.deficit.estimate.mean <= kToleranceMax;
    if (standing.as_good &&
        (advice.chosen == nullptr || IsCheaper(cell, advice.chosen))) {
      advice.chosen = cell;
    }
    advice.standings.push_back(standing);
  }
  return advice;
}

std::vector<OverallStanding> OverAll(const std::vector<Advice>& advices) {
  std::vector<OverallStanding> overall;
  for (const Advice& advice : advices) {
    for (const Standing& standing : advice.standings) {
      const StudyCell& cell = *standing.cell;
      auto held = std::find_if(overall.begin(), overall.end(),
                               [&cell](const OverallStanding& candidate) {
                                 return candidate.policy == cell.policy &&
                                        candidate.kind == cell.kind;
                               });
      if (held == overall.end()) {
        overall.push_back({.policy = cell.policy, .kind = cell.kind});
        held = overall.end() - 1;
      }
      ++held->conditions;
      held->as_good += standing.as_good ? 1 : 0;
      held->chosen += standing.cell == advice.chosen ? 1 : 0;
      held->mean_deficit += standing.deficit.estimate.mean;
    }
  }
  std::erase_if(overall, [&advices](const OverallStanding& standing) {
    return standing.conditions < static_cast<int64_t>(advices.size());
  });
  for (OverallStanding& standing : overall) {
    standing.mean_deficit /= static_cast<double>(standing.conditions);
  }
  std::stable_sort(
      overall.begin(), overall.end(),
      [](const OverallStanding& a, const OverallStanding& b) {
        return std::make_tuple(-a.as_good, -a.chosen, a.mean_deficit) <
               std::make_tuple(-b.as_good, -b.chosen, b.mean_deficit);
      });
  return overall;
}

std::string PolicyText(const StudyPolicy& policy, const std::string& kind) {
  StudyPolicy in_float32 = policy;
  in_float32.wire.clear();
  return absl::StrCat(in_float32.Text(), " normalisation, ", kind,
                      " statistics", policy.wire.empty() ? "" : ", ",
                      policy.wire);
}

// "2.1 ± 0.4 points" or "2.1 points (one seed)".
std::string PointsText(const Estimate& estimate) {
  return absl::StrCat(ToText(estimate, 1), " points",
                      estimate.half_width.has_value() ? "" : " (one seed)");
}

std::string SentenceOn(const StudySummary& summary, const Advice& advice) {
  const StudyCell& chosen = *advice.chosen;
  std::string text = absl::StrCat(
      advice.condition.Text(), ": ", PolicyText(chosen.policy, chosen.kind),
      " (", summary.measure, " ", ToText(EstimateMean(chosen.measure), 1),
      " %, ", absl::StrFormat("%.0f", MeanOf(chosen.seconds)), " s a run)");
  if (advice.chosen != advice.best) {
    absl::StrAppend(&text, ", as good as the best mean, ",
                    PolicyText(advice.best->policy, advice.best->kind), " (",
                    ToText(EstimateMean(advice.best->measure), 1), " %)");
  }
  std::vector<std::string> equal;
  std::vector<std::string> unclear;
  std::vector<std::string> worse;
  for (const Standing& standing : advice.standings) {
    if (standing.cell == advice.best || standing.cell == advice.chosen)
      continue;
    const std::string entry =
        absl::StrCat(standing.cell->Text(), " (",
                     PointsText(standing.deficit.estimate), ")");
    (standing.as_good        ? equal
     : standing.within_noise ? unclear
                             : worse)
        .push_back(entry);
  }
  const auto add = [&text](const char* what,
                           const std::vector<std::string>& entries) {
    if (entries.empty()) return;
    absl::StrAppend(&text, ". ", what, ": ", absl::StrJoin(entries, "; "));
  };
  add("Tied with the best", equal);
  add("More than a point below the best, but tied (more seeds would decide)",
      unclear);
  add("Worse than the best", worse);
  return text + ".";
}

}  // namespace

const std::vector<std::string>& RecommendationRule() {
  static const std::vector<std::string>& rule = *new std::vector<std::string>{
      "Each condition is an order of data, a number of workers and a number of "
      "images per worker. Its candidates are all policies with all kinds of "
      "moving statistics. A batch's own statistics are no candidate, because a "
      "single image has none.",
      "The best is the candidate with the highest mean over the seeds.",
      "A candidate ties with the best if the 95 % confidence interval "
      "(Student's t) of the difference contains 0. The interval is of the "
      "differences seed by seed if both have two seeds or more in common, and "
      "Welch's otherwise. With one seed there is no interval, and all "
      "candidates tie. Intervals are not widened for the number of "
      "comparisons.",
      "A candidate is as good as the best if it ties and its mean is at most 1 "
      "percentage point lower.",
      "Among candidates as good as the best, the one whose runs took the least "
      "time is recommended. Among kinds of statistics of the same run it is "
      "the first of sync, async, after, chief, because after needs a pass of "
      "its own, and chief sees only one worker's images.",
      "Over all conditions, the candidate that is as good as the best under "
      "most of them is recommended; among equals the one that is recommended "
      "under most, then the one with the smallest mean difference from the "
      "best."};
  return rule;
}

Recommendation Recommend(const StudySummary& summary) {
  Recommendation recommendation;
  for (const ConditionCells& group : ByCondition(summary)) {
    recommendation.by_condition.push_back(AdviseOn(group));
  }
  recommendation.overall = OverAll(recommendation.by_condition);
  return recommendation;
}

std::vector<std::string> InWords(const StudySummary& summary,
                                 const Recommendation& recommendation) {
  std::vector<std::string> sentences;
  if (!recommendation.overall.empty()) {
    const OverallStanding& first = recommendation.overall.front();
    std::string text = absl::StrFormat(
        "Over all: %s. It is as good as the best under %d of %d conditions and "
        "%.1f points behind it on average",
        PolicyText(first.policy, first.kind), first.as_good, first.conditions,
        first.mean_deficit);
    if (recommendation.overall.size() > 1) {
      const OverallStanding& next = recommendation.overall[1];
      absl::StrAppendFormat(&text, "; next is %s with %d of %d and %.1f points",
                            PolicyText(next.policy, next.kind), next.as_good,
                            next.conditions, next.mean_deficit);
    }
    sentences.push_back(text + ".");
  }
  for (const Advice& advice : recommendation.by_condition) {
    sentences.push_back(SentenceOn(summary, advice));
  }
  return sentences;
}

}  // namespace cohort
