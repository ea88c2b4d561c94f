#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/gradient_budget.h"
#include "server/core/membership/rank_table.h"
#include "server/core/step/arrived_push.h"

namespace cohort {

// The ranks whose gradients are paused for lack of room, and the room itself.
// StepDriver decides which ranks may continue.
class FlowControl {
 public:
  // True if a gradient of so many bytes of this rank may be taken now.
  using MayTake = absl::FunctionRef<bool(Rank, int64_t)>;

  // `ranks` must outlive it.
  FlowControl(int64_t limit_bytes, RankTable& ranks)
      : ranks_(ranks), budget_(limit_bytes) {}

  GradientBudget& budget() { return budget_; }
  const GradientBudget& budget() const { return budget_; }

  bool IsPaused(Rank rank) const;
  // Since `since` or earlier.
  bool IsPausedSince(Rank rank, Instant since) const;
  bool AnyPaused() const { return !paused_.empty(); }
  // Ascending.
  std::vector<Rank> PausedRanks() const;

  // There is no room for a gradient of `rank`, which waits for Resume.
  void Pause(Rank rank, int64_t bytes, Instant now);
  // It was taken, or the rank's streams have ended.
  void Forget(Rank rank) { paused_.erase(rank); }
  // Ranks for whose gradient there is room now continue, in ascending order.
  void Resume(MayTake may_take, Turn& turn);
  void ResumeAll(Turn& turn);

  // Those who are paused now are not paused again before ForgetLetIn.
  void LetInPaused();
  bool IsLetIn(Rank rank) const { return let_in_.contains(rank); }
  void ForgetLetIn() { let_in_.clear(); }

  // Charges a message, unless a reservation covers it.
  void Charge(Rank rank, int64_t bytes);
  // Frees what has come of `push`, which ends before it is folded.
  void Release(Rank rank, const ArrivedPush& push, Turn& turn);
  // Replaces the reservation by what has come of the push.
  void Settle(Rank rank, const ArrivedPush& push);

 private:
  // A gradient that there is no room for.
  struct Paused {
    int64_t bytes = 0;
    Instant since;
    // It is to be offered again, and was not yet.
    bool resumed = false;
  };

  RankTable& ranks_;
  GradientBudget budget_;
  std::map<Rank, Paused> paused_;
  std::set<Rank> let_in_;
};

}  // namespace cohort
