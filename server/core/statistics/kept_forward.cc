#include "server/core/statistics/kept_forward.h"

#include <utility>

namespace cohort {

std::vector<std::vector<CallMoments>> MomentsByMember(KeptForward kept) {
  std::vector<std::vector<CallMoments>> members(kept.members.size());
  for (KeptForward::Call& call : kept.calls) {
    for (size_t i = 0; i < members.size(); ++i) {
      if (!call.moments[i].has_value()) continue;
      members[i].push_back({.layer = call.layer,
                            .call = call.call,
                            .moments = *std::move(call.moments[i])});
    }
  }
  return members;
}

}  // namespace cohort
