#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace cohort {

// How far one rank is, counted since the last change of policy.
struct RankLead {
  Rank rank;
  int64_t assignments_finished = 0;
  // Live, or lost and waited for.
  bool counts = false;
};

// Ranks that are so far behind `rank` that it must wait for them: those that
// it leads by `lead_max` assignments or more. Empty: it may start the next.
// lead_max: 1 or more.
//
// Source: stale synchronous parallel, Ho et al., "More Effective Distributed
//   ML via a Stale Synchronous Parallel Parameter Server", 2013, section 3.
std::vector<Rank> BehindBy(int64_t lead_max, Rank rank,
                           const std::vector<RankLead>& ranks);

// Where a rank that has just come starts to count: the minimum of those that
// count, 0 if none does.
int64_t StartOfCount(const std::vector<RankLead>& ranks);

}  // namespace cohort
