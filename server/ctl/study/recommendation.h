#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/ctl/study/estimate.h"
#include "server/ctl/study/summary.h"

namespace cohort {

// How one candidate does beside the best under the same condition.
struct Standing {
  const StudyCell* cell = nullptr;
  // Best minus this one.
  Difference deficit;
  // No difference to the best was shown.
  bool within_noise = false;
  // May be recommended: within noise, and not more than a point behind.
  bool as_good = false;
};

struct Advice {
  StudyCondition condition;
  // Best mean first.
  std::vector<Standing> standings;
  const StudyCell* best = nullptr;
  const StudyCell* chosen = nullptr;
};

// One policy with one kind of statistics over all conditions.
struct OverallStanding {
  StudyPolicy policy;
  std::string kind;
  int64_t conditions = 0;
  // Of these.
  int64_t as_good = 0;
  int64_t chosen = 0;
  double mean_deficit = 0;
};

struct Recommendation {
  std::vector<Advice> by_condition;
  // The recommended one first. Only what was run under every condition.
  std::vector<OverallStanding> overall;
};

// How a recommendation follows from the numbers, in words. Recommend does
// exactly this.
const std::vector<std::string>& RecommendationRule();

// The result refers to the summary.
Recommendation Recommend(const StudySummary& summary);

// Sentences: first the recommendation over all, then one a condition, each with
// the numbers it follows from.
std::vector<std::string> InWords(const StudySummary& summary,
                                 const Recommendation& recommendation);

}  // namespace cohort
