#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/gradient_budget.h"
#include "server/core/membership/rank_table.h"
#include "server/core/push.h"
#include "server/core/requests.h"
#include "server/core/turn.h"

namespace cohort {

// The streams of gradients that are paused for lack of room, and the room
// itself. Who may go on is decided by how pushes are combined (StepDriver).
class FlowControl {
 public:
  // True if a message of so many bytes of this rank may be taken now.
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

  // Where a rank's gradients come from. Each waits for itself: one that is let
  // in says nothing of the other.
  enum class Source { kOwnStream, kDataShards };
  static Source SourceOf(const GradientMessage& message) {
    return message.ticket == 0 ? Source::kOwnStream : Source::kDataShards;
  }

  // There is no room for a message of `rank`; its source waits for Resume.
  void Pause(Rank rank, Source source, int64_t bytes, Instant now);
  // The message that waited there was taken.
  void Forget(Rank rank, Source source) { paused_.erase({rank, source}); }
  // The rank's streams have ended.
  void Forget(Rank rank);
  // Streams go on for whose message there is room now.
  void Resume(MayTake may_take, Turn& turn);
  void ResumeAll(Turn& turn);

  // Those who are paused now are not paused again before ForgetLetIn.
  void LetInPaused();
  bool IsLetIn(Rank rank) const { return let_in_.contains(rank); }
  void ForgetLetIn() { let_in_.clear(); }

  // Charges a message, unless a reservation covers it.
  void Charge(Rank rank, int64_t bytes);
  // Frees what is held of `push`, which ends before it is folded.
  void Release(Rank rank, const Push& push, Turn& turn);
  // Replaces the reservation by what has come of the push.
  void Settle(Rank rank, const Push& push);

 private:
  // A message that there is no room for.
  struct Paused {
    int64_t bytes = 0;
    Instant since;
    // Its source was told to go on, and has not spoken yet.
    bool resumed = false;
  };
  using Key = std::pair<Rank, Source>;

  RankTable& ranks_;
  GradientBudget budget_;
  std::map<Key, Paused> paused_;
  std::set<Rank> let_in_;
};

}  // namespace cohort
