#include "server/core/step/flow_control.h"

#include "server/core/step/push_outcome.h"

namespace cohort {

bool FlowControl::IsPaused(Rank rank) const {
  return IsPausedSince(rank, absl::InfiniteDuration());
}

bool FlowControl::IsPausedSince(Rank rank, Instant since) const {
  const auto at = paused_.find(rank);
  return at != paused_.end() && !at->second.resumed &&
         at->second.since <= since;
}

std::vector<Rank> FlowControl::PausedRanks() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, paused] : paused_) {
    if (!paused.resumed) ranks.push_back(rank);
  }
  return ranks;
}

void FlowControl::Pause(Rank rank, int64_t bytes, Instant now) {
  Paused& paused = paused_[rank];
  // No bytes: the entry is new. A rank that was resumed and then found no room
  // keeps its time, because SyncRounds::IsStalled counts the whole wait.
  if (paused.bytes == 0) paused.since = now;
  paused.bytes = bytes;
  paused.resumed = false;
}

void FlowControl::Resume(MayTake may_take, Turn& turn) {
  // Bytes that this loop let in; they are not charged yet.
  int64_t admitted = 0;
  for (auto& [rank, paused] : paused_) {
    if (paused.resumed || !may_take(rank, admitted + paused.bytes)) continue;
    admitted += paused.bytes;
    paused.resumed = true;
    Worker& worker = ranks_[rank];
    // From now on it may be waited for.
    worker.work.NoteProgress(turn.now);
    turn.out.push_back(effect::ResumeGradients{
        .rank = rank, .incarnation = worker.incarnation});
  }
}

void FlowControl::ResumeAll(Turn& turn) {
  // The room is not checked: the pushes that filled it are over, or the run is.
  for (const auto& [rank, paused] : paused_) {
    if (paused.resumed) continue;
    turn.out.push_back(effect::ResumeGradients{
        .rank = rank, .incarnation = ranks_[rank].incarnation});
  }
  paused_.clear();
}

void FlowControl::LetInPaused() {
  for (const auto& [rank, paused] : paused_) {
    let_in_.insert(rank);
    // Withdraws a request that still waits. From now on the rank is charged
    // message by message, so a grant would give it the same room twice. A
    // reservation that was granted covers its messages (Charge) and stays.
    if (!budget_.HasReserved(rank)) budget_.Unreserve(rank);
  }
}

void FlowControl::Charge(Rank rank, int64_t bytes) {
  if (!budget_.HasReserved(rank)) budget_.Charge(bytes);
}

void FlowControl::Release(Rank rank, const ArrivedPush& push, Turn& turn) {
  DropGradients(rank, push, turn);
  // Its next push asks for room again: charged and reserved it would be counted
  // twice.
  let_in_.erase(rank);
  // A reservation covers what has come of the push.
  if (!budget_.HasReserved(rank)) budget_.Release(push.unfolded_bytes());
  budget_.Unreserve(rank);
}

void FlowControl::Settle(Rank rank, const ArrivedPush& push) {
  if (!budget_.HasReserved(rank)) {
    // The push was charged message by message; only a request that still waits
    // is withdrawn.
    budget_.Unreserve(rank);
    return;
  }
  // In this order, or the room would be given away in between.
  budget_.Charge(push.unfolded_bytes());
  budget_.Unreserve(rank);
}

}  // namespace cohort
