#include "server/core/policy/lead.h"

#include <algorithm>
#include <limits>

namespace cohort {

std::vector<Rank> BehindBy(int64_t lead_max, Rank rank,
                           const std::vector<RankLead>& ranks) {
  const auto self =
      std::find_if(ranks.begin(), ranks.end(),
                   [rank](const RankLead& r) { return r.rank == rank; });
  std::vector<Rank> behind;
  if (self == ranks.end()) return behind;
  for (const RankLead& other : ranks) {
    if (other.counts &&
        self->assignments_finished - other.assignments_finished >= lead_max) {
      behind.push_back(other.rank);
    }
  }
  return behind;
}

int64_t StartOfCount(const std::vector<RankLead>& ranks) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const RankLead& r : ranks) {
    if (r.counts) least = std::min(least, r.assignments_finished);
  }
  return least == std::numeric_limits<int64_t>::max() ? 0 : least;
}

}  // namespace cohort
