#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace cohort {

// One push of a round, as far as a policy may know it.
struct PushView {
  Rank rank;
  // All of it has arrived.
  bool complete = false;
};

// Snapshot of a synchronous step.
struct RoundView {
  // The ranks that may still become members of the step, in rank order.
  std::vector<PushView> pushes;
  // All of `pushes` are members, and there will be no others.
  bool fixed = true;
  // Not fixed: ranks that have done what makes a member, in the order in which
  // they did: a complete push, or under global normalisation the first moments
  // of the step or the closing.
  std::vector<Rank> claims;
};

struct Decision {
  // kDropOthers: `members` alone make up the step from now on; the other ranks
  // are dropped from it.
  enum class Action { kWait, kDropOthers, kApply };
  Action action = Action::kWait;
  // For kDropOthers and kApply, ascending: the ranks whose pushes make up the
  // commit.
  std::vector<Rank> members;
  // For kWait: the ranks that are not done.
  std::vector<Rank> waiting_for;
};

// Decides about a synchronous step: it is applied when every member's push is
// complete. The members are all ranks of the round, or with pushes_min = K the
// first K that claim it (backup workers). Pure: equal rounds give equal
// decisions.
//
// Source: backup workers as in Chen et al., "Revisiting Distributed
//   Synchronous SGD", 2016, section 3.
Decision DecideSync(const RoundView& round, int32_t pushes_min);

}  // namespace cohort
