#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/ids.h"
#include "server/core/options.h"

namespace cohort {

// One push of a round, as far as a policy may know it.
struct PushView {
  Rank rank;
  // All of it has arrived.
  bool complete = false;
};

// Snapshot of what is held at this moment.
struct RoundView {
  // Sync: whoever may still become a member of the step, in rank order.
  // Otherwise the pushes held, in order of arrival.
  std::vector<PushView> pushes;
  // Sync: nobody else will be a member, and all of `pushes` are.
  bool fixed = true;
  // Sync, not fixed: ranks that have done what makes a member, in the order in
  // which they did: a complete push, or under global normalisation the first
  // moments of the step or the closing.
  std::vector<Rank> claims;
};

struct Decision {
  // kFix: `members` alone make up the step from now on.
  enum class Action { kWait, kFix, kApply };
  Action action = Action::kWait;
  // For kFix and kApply, ascending: whose pushes make up the next commit.
  std::vector<Rank> members;
  // For kWait: whom it waits for.
  std::vector<Rank> waiting_for;
};

// Decides about the pushes held at this moment. Stateless and idempotent:
// equal rounds give equal decisions, so a test needs no server.
class AggregationPolicy {
 public:
  virtual ~AggregationPolicy() = default;
  virtual Decision Decide(const RoundView& round) const = 0;
};

// sync: applies when every member's push is complete. The members are all
//   ranks of the round, or with pushes_min = K the first K that claim it
//   (backup workers).
// bounded, async: applies the first complete push, alone.
//
// Source: backup workers as in Chen et al., "Revisiting Distributed
//   Synchronous SGD", 2016, section 3.
std::unique_ptr<AggregationPolicy> MakeAggregationPolicy(
    const PolicyOptions& policy);

}  // namespace cohort
