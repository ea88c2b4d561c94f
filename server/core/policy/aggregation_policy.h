#pragma once

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
  // Members of the step, in rank order (sync), or the pushes held, in order
  // of arrival (async).
  std::vector<PushView> pushes;
};

struct Decision {
  enum class Action { kWait, kApply };
  Action action = Action::kWait;
  // For kApply: whose pushes make up the next commit.
  std::vector<Rank> members;
  // For kWait: whom it waits for.
  std::vector<Rank> waiting_for;
};

// What to do with the pushes held at this moment. Stateless and idempotent:
// equal rounds give equal decisions, so a test needs no server.
class AggregationPolicy {
 public:
  virtual ~AggregationPolicy() = default;
  virtual Decision Decide(const RoundView& round) const = 0;
};

// sync: applies when every member's push is complete.
// async: applies the first complete push, alone.
std::unique_ptr<AggregationPolicy> MakeAggregationPolicy(AggregationKind kind);

}  // namespace cohort
