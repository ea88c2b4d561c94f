// Which streams of gradients are paused, and when they go on.
//
// Where a step waits for all its members, somebody must always be let in, or
// what is held would never be folded: those who have sent the fewest partitions
// are. All workers send partitions in one order, so what the furthest behind
// sends completes a partition that the others have sent, and frees it. Only a
// rank that does not compute what the others do can keep them waiting in a
// rendezvous for ever; all who are paused are let in then, so that their
// closings show who differs. Elsewhere pushes do not complete each other, and
// each is let in whole.

#include <algorithm>
#include <vector>

#include "server/core/coordinator.h"

namespace cohort {
namespace {

// Longer than messages of an honest member are under way.
constexpr absl::Duration kStalledMin = absl::Seconds(1);

}  // namespace

bool Coordinator::IsPaused(Rank rank) const {
  const auto at = paused_.find(rank);
  return at != paused_.end() && !at->second.resumed;
}

std::vector<Rank> Coordinator::PausedRanks() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, paused] : paused_) {
    if (!paused.resumed) ranks.push_back(rank);
  }
  return ranks;
}

bool Coordinator::IsFurthestBehind(Rank rank) const {
  const int32_t received = round_->pushes.at(rank).received();
  return std::all_of(round_->pushes.begin(), round_->pushes.end(),
                     [received](const auto& push) {
                       return push.second.received() >= received;
                     });
}

bool Coordinator::MayTake(Rank rank, int64_t bytes) const {
  // Its push is over: the message will be ignored.
  if (settings_.sync() && !IsMember(rank)) return true;
  if (let_in_.contains(rank)) return true;
  if (ReservesPushes()) return budget_.HasReserved(rank);
  if (budget_.Fits(bytes)) return true;
  // A fold under way gives room soon; until then no exception is needed.
  return !budget_.folding() && IsFurthestBehind(rank);
}

// True if every member is paused, waits in a rendezvous or has closed its push.
bool Coordinator::Stalled(Instant now) const {
  return std::all_of(round_->pushes.begin(), round_->pushes.end(),
                     [&](const auto& member) {
                       const auto& [rank, push] = member;
                       const auto paused = paused_.find(rank);
                       if (paused != paused_.end() && !paused->second.resumed) {
                         return now - paused->second.since >= kStalledMin;
                       }
                       return push.closed() || round_->rendezvous.Waits(rank);
                     });
}

void Coordinator::EndStall(Instant now) {
  if (paused_.empty() || !settings_.sync() || !round_.has_value() ||
      budget_.folding() || !Stalled(now)) {
    return;
  }
  for (const auto& [rank, paused] : paused_) {
    let_in_.insert(rank);
    // It is charged message by message, so it must not get room twice.
    if (!budget_.HasReserved(rank)) budget_.Unreserve(rank);
  }
}

void Coordinator::ResumePaused(Instant now, Effects& out) {
  if (paused_.empty()) return;
  // Bytes that this loop let in; they are not charged yet.
  int64_t admitted = 0;
  for (auto& [rank, paused] : paused_) {
    if (paused.resumed || !MayTake(rank, admitted + paused.bytes)) continue;
    admitted += paused.bytes;
    paused.resumed = true;
    Worker& worker = ranks_[rank];
    // From now on it may be waited for.
    worker.last_progress = now;
    out.push_back(effect::ResumeGradients{.rank = rank,
                                          .incarnation = worker.incarnation});
  }
}

void Coordinator::ResumeAll(Effects& out) {
  for (const auto& [rank, paused] : paused_) {
    if (paused.resumed) continue;
    out.push_back(effect::ResumeGradients{
        .rank = rank, .incarnation = ranks_[rank].incarnation});
  }
  paused_.clear();
}

void Coordinator::ReleasePush(Rank rank, const Push& push) {
  // A reservation covers what has come of the push.
  if (!budget_.HasReserved(rank)) budget_.Release(push.held_bytes());
  budget_.Unreserve(rank);
}

void Coordinator::SettlePush(Rank rank, const Push& push) {
  if (!budget_.HasReserved(rank)) {
    budget_.Unreserve(rank);
    return;
  }
  // In this order, or the room would be given away in between.
  budget_.Charge(push.held_bytes());
  budget_.Unreserve(rank);
}

void Coordinator::DropAssembly(Rank rank) {
  const auto push = assembling_.find(rank);
  if (push == assembling_.end()) return;
  ReleasePush(rank, push->second);
  assembling_.erase(push);
}

void Coordinator::FreeRoomOf(Rank rank) {
  if (round_->fixed ||
      round_->pushes.at(rank).Complete(model_.trainable_partitions())) {
    return;
  }
  ErasePush(rank);
  round_->pushes.try_emplace(rank, model_.partitions());
}

}  // namespace cohort
