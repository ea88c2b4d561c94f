#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"

namespace cohort {

// The batch-norm calls of one member of a step, as far as they are known.
struct MemberCalls {
  Rank rank;
  // Members of one group normalise together.
  size_t group = 0;
  // By layer, as its closed push tells; null: it is not closed. Borrowed.
  const std::vector<int32_t>* closed = nullptr;
  // For a closed member: calls that its group waits in and that it never made.
  std::vector<CallPlace> lacks;
  // For an open member: calls in which it waits for its group, ascending.
  std::vector<CallPlace> waits;
};

// The calls of the layer and part of `place` that a closing counts, of a model
// of so many layers.
inline int32_t CallsAt(const std::vector<int32_t>& closed,
                       const CallPlace& place, size_t layers) {
  const size_t at = static_cast<size_t>(place.part) * layers +
                    static_cast<size_t>(place.layer);
  return at < closed.size() ? closed[at] : 0;
}

// Members that can never make one step together.
struct CallDissent {
  // The one that all others agree against, if there are two or more of them.
  std::optional<Rank> alone;
  // The first difference: layer, call, and the ranks on both sides.
  std::string text;
};

// Compares the calls of `members`, which are all closed or waiting, in rank
// order. `crossed`: members of one group that wait in different calls disagree.
// Set it only if they have waited so long that no contribution can be under way
// any more. Returns nothing if no two members contradict each other.
std::optional<CallDissent> FindCallDissent(
    const std::vector<MemberCalls>& members,
    const std::vector<BatchNormSpec>& layers, Version step, bool crossed);

}  // namespace cohort
