#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "common/moments.h"

namespace cohort {

// Moments that members contributed to the forward calls of a step, in the order
// in which RendezvousTable holds them: by call. So they are handed over in one
// move for each call, under the lock, and sorted by member outside it.
struct KeptForward {
  struct Call {
    int32_t layer = 0;
    int32_t call = 0;
    // By position in `members`. Absent: not kept.
    std::vector<std::optional<Moments>> moments;
  };
  // In rank order.
  std::vector<Rank> members;
  // Ascending by (layer, call).
  std::vector<Call> calls;
};

// The same moments by member, in the order of `members`, each ascending by
// (layer, call).
std::vector<std::vector<CallMoments>> MomentsByMember(KeptForward kept);

}  // namespace cohort
