#include "server/core/policy/sync_decision.h"

#include <algorithm>
#include <cstddef>

namespace cohort {
namespace {

Decision Complete(const RoundView& round) {
  Decision decision;
  for (const PushView& push : round.pushes) {
    (push.complete ? decision.members : decision.waiting_for)
        .push_back(push.rank);
  }
  if (!round.pushes.empty() && decision.waiting_for.empty()) {
    decision.action = Decision::Action::kApply;
  } else {
    decision.members.clear();
  }
  return decision;
}

// The first K ranks to claim make up the step, and the others are dropped from
// it. If fewer ranks are left after a loss, all of them.
Decision DropAfterFirst(const RoundView& round, int32_t pushes_min) {
  const size_t wanted =
      std::min(static_cast<size_t>(pushes_min), round.pushes.size());
  const std::vector<Rank>& claims = round.claims;
  Decision decision;
  if (wanted > 0 && claims.size() >= wanted) {
    decision.action = Decision::Action::kDropOthers;
    decision.members.assign(claims.begin(),
                            claims.begin() + static_cast<ptrdiff_t>(wanted));
    std::sort(decision.members.begin(), decision.members.end());
    return decision;
  }
  for (const PushView& push : round.pushes) {
    if (std::find(claims.begin(), claims.end(), push.rank) == claims.end()) {
      decision.waiting_for.push_back(push.rank);
    }
  }
  return decision;
}

}  // namespace

Decision DecideSync(const RoundView& round, int32_t pushes_min) {
  return round.fixed ? Complete(round) : DropAfterFirst(round, pushes_min);
}

}  // namespace cohort
