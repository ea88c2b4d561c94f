// Membership of a synchronous step: candidates, members, losses.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/step/push_outcome.h"
#include "server/core/step/sync_rounds.h"

namespace cohort {

void SyncRounds::Claim(Rank rank, Turn& turn) {
  if (!round_->Claim(rank)) return;
  const Decision decision = round_->Decide();
  if (decision.action == Decision::Action::kFix) {
    FixMembers(decision.members, turn);
  }
}

void SyncRounds::ClaimByPush(Rank rank, Turn& turn) {
  const bool claims = parts_.settings.global()
                          ? round_->pushes[rank].closed()
                          : round_->pushes.IsComplete(rank);
  if (claims) Claim(rank, turn);
}

void SyncRounds::FixMembers(const std::vector<Rank>& members, Turn& turn) {
  for (Rank rank : round_->Fix(members)) DropFromStep(rank, turn);
  for (const auto& [rank, push] : round_->pushes.all()) {
    parts_.flow.Settle(rank, push);
  }
  ResumePaused(turn);
  for (auto& [key, outcome] : round_->rendezvous.Fix(members, turn.now)) {
    AnswerRendezvous({.step = round_->step(),
                      .attempt = round_->attempt(),
                      .place = key.place},
                     std::move(outcome), turn);
  }
  PrepareCommit(turn);
}

void SyncRounds::DropFromStep(Rank rank, Turn& turn) {
  turn.changed = true;
  const std::string reason =
      absl::StrCat("step ", round_->step().value(), " commits with the first ",
                   round_->members().size(), " pushes");
  const bool opened = round_->pushes[rank].opened();
  parts_.flow.Release(rank, round_->pushes[rank], turn);
  round_->Drop(rank);
  Worker& worker = parts_.ranks[rank];
  for (const auto& pending : round_->rendezvous.AllPending()) {
    if (pending.rank != rank) continue;
    turn.out.push_back(effect::ReduceAborted{.rank = rank,
                                             .incarnation = worker.incarnation,
                                             .key = pending.key,
                                             .reason = reason});
  }
  // It was not given the step, and never will be.
  if (!worker.trains()) return;
  const PushKey key = KeyOf(*worker.outstanding);
  worker.outstanding.reset();
  ++parts_.ledger.counts.pushes_dropped;
  CountStatistics(parts_, &StatisticsCounts::dropped, 1);
  // It may still be computing, but its result will not be used.
  if (worker.usable()) {
    turn.out.push_back(effect::StepAborted{.session = worker.session,
                                           .step = round_->step(),
                                           .attempt = round_->attempt(),
                                           .members = round_->members(),
                                           .reason = reason});
  }
  const PushVerdict verdict{.verdict = Verdict::kDropped,
                            .version = round_->step(),
                            .reason = reason};
  if (opened) {
    AnswerPush(parts_, worker, key, verdict, 0, turn);
    return;
  }
  parts_.ledger.pushes_of(rank).Decide(key, verdict);
  worker.waiting = worker.usable();
}

void SyncRounds::RemoveCandidate(Rank rank, Turn& turn) {
  parts_.flow.Release(rank, round_->pushes[rank], turn);
  round_->Remove(rank);
  parts_.ranks[rank].outstanding.reset();
  const Decision decision = round_->Decide();
  if (decision.action == Decision::Action::kFix) {
    FixMembers(decision.members, turn);
  }
}

void SyncRounds::RankLost(Rank rank, bool waits, const std::string& why,
                          Turn& turn) {
  if (IsMember(rank)) {
    // A lost incarnation waits for nothing any more.
    round_->rendezvous.Forget(rank);
    // A complete push counts without its sender.
    if (round_->pushes.IsComplete(rank)) {
      round_->NoteLeft(rank);
    } else {
      ReleaseIncomplete(rank, waits, why, turn);
    }
  }
  ResumePaused(turn);
}

void SyncRounds::ReleaseIncomplete(Rank rank, bool waits,
                                   const std::string& why, Turn& turn) {
  // The samples of its share are gone with it, so what others have computed
  // with them is void.
  const bool data_is_gone =
      parts_.model.model()->plan.own_data && round_->WasIssued(rank);
  if (waits && !data_is_gone) {
    // Where others may take its place, what came of its push goes: they need
    // the room.
    if (round_->fixed()) return;
    parts_.flow.Release(rank, round_->pushes[rank], turn);
    round_->Restart(rank);
    return;
  }
  const std::vector<Rank>& claims = round_->claims();
  if (!round_->fixed() && round_->members().size() > 1 &&
      std::find(claims.begin(), claims.end(), rank) == claims.end()) {
    RemoveCandidate(rank, turn);
    return;
  }
  AbortAttempt(why, turn);
}

}  // namespace cohort
