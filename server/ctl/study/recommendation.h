#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/ctl/study/estimate.h"
#include "server/ctl/study/summary.h"

namespace cohort {

// The result of one candidate compared with the best under the same condition.
struct Standing {
  const StudyCell* cell = nullptr;
  // Best minus this one.
  Difference deficit;
  // True if no difference to the best was shown.
  bool within_noise = false;
  // True if it may be recommended: it ties, and is at most a point behind.
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
  // The number of conditions under which it is as good.
  int64_t as_good = 0;
  int64_t chosen = 0;
  double mean_deficit = 0;
};

struct Recommendation {
  std::vector<Advice> by_condition;
  // The recommended one first. Only combinations that were run under every
  // condition.
  std::vector<OverallStanding> overall;
};

// The rule by which Recommend derives a recommendation from the numbers, in
// words.
const std::vector<std::string>& RecommendationRule();

// The result refers to `summary`, which must outlive it.
Recommendation Recommend(const StudySummary& summary);

// Sentences: first the overall recommendation, then one for each condition,
// with the numbers that they are based on.
std::vector<std::string> InWords(const StudySummary& summary,
                                 const Recommendation& recommendation);

}  // namespace cohort
