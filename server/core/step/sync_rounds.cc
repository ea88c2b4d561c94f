#include "server/core/step/sync_rounds.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/step/push_checks.h"
#include "server/core/step/push_outcome.h"

namespace cohort {

// ---- rounds

void SyncRounds::StartRound() {
  const RunLedger& ledger = parts_.ledger;
  if (parts_.phase.ended() || parts_.phase.draining() ||
      parts_.settings.pending().has_value() || NoMoreSteps()) {
    return;
  }
  std::vector<Rank> candidates = Candidates();
  if (candidates.empty() ||
      static_cast<int32_t>(candidates.size()) < parts_.settings.workers_min()) {
    return;
  }
  const PolicyOptions& policy = parts_.settings.policy();
  StepCut cut =
      ledger.cursor.Cut(BatchSizesOf(candidates), policy.global_batch);
  round_.emplace(Round::Plan{
      .step = parts_.model.version(),
      .attempt = ledger.next_attempt,
      .cut = std::move(cut),
      .candidates = std::move(candidates),
      .partitions = parts_.model.partitions(),
      .trainable = parts_.model.trainable_partitions(),
      .pushes_min = policy.pushes_min,
      .rendezvous = {
          .group_size = policy.normalization_group,
          .keep = KeptMoments(),
          .inline_max = parts_.settings.options().moments_inline_max}});
}

RendezvousTable::Keep SyncRounds::KeptMoments() const {
  using Keep = RendezvousTable::Keep;
  const PolicyOptions& policy = parts_.settings.policy();
  const auto keeps = [&policy](StatisticsKind kind) {
    return std::find(policy.statistics.begin(), policy.statistics.end(),
                     kind) != policy.statistics.end();
  };
  // Groups meet by themselves, so nothing has the moments of all ranks.
  if (MeasuresDrift() || policy.normalization_group > 0 ||
      keeps(StatisticsKind::kAsync)) {
    return Keep::kAll;
  }
  return keeps(StatisticsKind::kChief) ? Keep::kFirst : Keep::kNone;
}

bool SyncRounds::MeasuresDrift() const {
  return parts_.model.version().value() % kDriftEvery == 0;
}

bool SyncRounds::Advance(Turn& turn) {
  if (fencing_.has_value()) {
    EndAttemptOf(*std::exchange(fencing_, std::nullopt), turn);
  }
  if (!round_.has_value()) {
    StartRound();
    return round_.has_value();
  }
  if (!SettleCalls(turn)) return true;
  // The policy reads all pushes, so it is asked only when it may say yes.
  const std::optional<PendingCommit>& commit = round_->progress.commit;
  if (!round_->progress.calls_agree || !commit.has_value() ||
      !commit->complete() ||
      round_->Decide().action != Decision::Action::kApply) {
    return false;
  }
  if (!UpdateStatistics(turn)) return false;
  const std::optional<StatisticsUpdate>& update = round_->progress.statistics;
  if (update.has_value() && !update->status.ok()) {
    turn.changed = true;
    turn.end = {.outcome = RunOutcome::kModelMismatch,
                .reason = std::string(update->status.message())};
    return true;
  }
  Commit(turn);
  return true;
}

std::optional<Assignment> SyncRounds::Next(Worker& worker) {
  if (!IsMember(worker.rank) || !round_->Issue(worker.rank)) {
    return std::nullopt;
  }
  return Assignment{.attempt = round_->attempt(),
                    .members = round_->members(),
                    .data_epoch = round_->cut().epoch,
                    .range = round_->range(worker.rank),
                    .batches = round_->cut().batches};
}

bool SyncRounds::GivesAgain(const Worker& worker) const {
  // A replacement has other data than the sender of a push that counts. It
  // would be told that its own counts.
  return !IsMember(worker.rank) || !round_->HasLeft(worker.rank) ||
         !parts_.model.model()->plan.own_data;
}

bool SyncRounds::BlocksIssuedStep(Rank rank) const {
  return IsMember(rank) && round_->AnyIssued() && !round_->WasIssued(rank);
}

void SyncRounds::AbortAttempt(const std::string& reason, Turn& turn) {
  turn.changed = true;
  const auto ended = std::make_shared<const Round>(*std::move(round_));
  const Round& over = *ended;
  round_.reset();
  if (over.progress.commit.has_value()) {
    EndTransaction(*over.progress.commit, TransactionEnd::kAborted,
                   parts_.model, turn);
  }
  for (const auto& [rank, push] : over.pushes.all()) {
    parts_.flow.Release(rank, push, turn);
  }
  parts_.flow.ForgetLetIn();
  parts_.flow.ResumeAll(turn);
  ++parts_.ledger.counts.steps_aborted;
  const std::string name = absl::StrCat("step ", over.step().value(),
                                        " attempt ", over.attempt().value());
  turn.out.push_back(
      effect::Log{.severity = Severity::kWarning,
                  .text = absl::StrCat(name, " ends: ", reason)});
  for (const RendezvousTable::Pending& pending : over.rendezvous.AllPending()) {
    turn.out.push_back(effect::ReduceAborted{
        .rank = pending.rank,
        .incarnation = parts_.ranks[pending.rank].incarnation,
        .key = pending.key,
        .reason = reason});
  }
  const PushVerdict verdict{
      .verdict = Verdict::kDropped,
      .version = over.step(),
      .reason = absl::StrCat(name, " ended early: ", reason)};
  std::vector<Rank> told;
  for (Rank rank : over.members()) {
    Worker& worker = parts_.ranks[rank];
    if (!worker.trains()) continue;
    // One that is not closed yet is answered when it is.
    const PushKey key = KeyOf(*worker.outstanding);
    PushHistory& history = parts_.ledger.pushes_of(rank);
    history.Decide(key, verdict);
    if (over.pushes[rank].closed()) {
      history.Find(key)->answered = true;
      // They learn on their sessions what comes next, so that it does not
      // depend on a stream that the worker may have given up.
      turn.answers.push_back({.rank = rank,
                              .incarnation = worker.incarnation,
                              .key = key,
                              .verdict = verdict,
                              .session_first = true});
    }
    worker.outstanding.reset();
    worker.waiting = worker.usable();
    if (worker.waiting && over.WasIssued(rank)) told.push_back(rank);
  }
  parts_.ledger.next_attempt = over.attempt().Next();
  StartRound();
  for (Rank rank : told) {
    turn.out.push_back(effect::StepAborted{
        .session = parts_.ranks[rank].session,
        .step = over.step(),
        .attempt = over.attempt(),
        .members = round_.has_value() ? round_->members() : RankList(),
        .reason = reason});
  }
  turn.out.push_back(effect::Discard{.what = ended});
}

// ---- messages of one push

absl::Status SyncRounds::Open(Worker& worker, const PushOpening& opening,
                              Turn& turn) {
  COHORT_RETURN_IF_ERROR(
      CheckOpening(opening, {.rank = worker.rank,
                             .samples = SamplesOf(*worker.outstanding),
                             .rates = RatesWanted(),
                             .oldest = round_->step(),
                             .newest = round_->step()}));
  worker.holds.reset();
  worker.takes_statistics = opening.takes_statistics;
  if (opening.takes_changes) {
    worker.holds = {.incarnation = worker.incarnation,
                    .next = opening.version.Next()};
  }
  const ArrivedPush::Arrival arrival =
      round_->pushes.Open(worker.rank, KeyOf(*worker.outstanding), opening);
  CountArrival(worker, arrival, parts_.ledger, turn);
  if (arrival != ArrivedPush::Arrival::kNew) return absl::OkStatus();
  if (ReservesPushes()) {
    parts_.flow.budget().Reserve(worker.rank, PushBytes(parts_.model.layout()));
  }
  PrepareCommit(turn);
  return absl::OkStatus();
}

absl::StatusOr<Admission> SyncRounds::Gradient(Worker& worker,
                                               const GradientArrival& gradient,
                                               Turn& turn) {
  const ArrivedPush& push = round_->pushes[worker.rank];
  COHORT_RETURN_IF_ERROR(CheckOpened(push, gradient));
  const int32_t partition = gradient.partition;
  // A partition that has come before takes no room.
  if (!push.Has(partition)) {
    if (!MayTake(worker.rank, gradient.bytes)) {
      parts_.flow.Pause(worker.rank, gradient.bytes, turn.now);
      return Admission::kPaused;
    }
    parts_.flow.Forget(worker.rank);
    parts_.flow.Charge(worker.rank, gradient.bytes);
  }
  const ArrivedPush::Arrival arrival =
      round_->pushes.Take(worker.rank, gradient);
  const bool fresh = arrival == ArrivedPush::Arrival::kNew;
  const PushKey key = KeyOf(*worker.outstanding);
  TakeGradient(worker, key, gradient, /*held=*/fresh, turn);
  CountArrival(worker, arrival, parts_.ledger, turn);
  if (fresh) {
    NoteFoldIfComplete(partition, turn.now);
    ClaimByPush(worker.rank, turn);
    // Another one may be furthest behind now.
    ResumePaused(turn);
  } else if (round_->progress.commit.has_value()) {
    SendResult(*round_->progress.commit, partition, worker, key, turn);
  }
  return Admission::kTaken;
}

absl::Status SyncRounds::Close(Worker& worker, PushClosing closing,
                               Turn& turn) {
  const ArrivedPush::Arrival arrival =
      round_->pushes.Close(worker.rank, std::move(closing), turn.now);
  CountArrival(worker, arrival, parts_.ledger, turn);
  if (arrival == ArrivedPush::Arrival::kNew) NoteClosing(worker.rank);
  ClaimByPush(worker.rank, turn);
  return absl::OkStatus();
}

// ---- room for gradients
//
// Where a step waits for all its members, somebody must always be let in, or
// what is held would never be folded: those who have sent the fewest partitions
// are. All workers send partitions in one order, so what the furthest behind
// sends completes a partition that the others have sent, and frees it. A rank
// that leaves out batch-norm calls in which the others wait may be paused for a
// partition that they send only later; all who are paused are let in then, so
// that the step goes on. Where the first K pushes make a step they do not
// complete each other, and each is let in whole.

bool SyncRounds::MayTake(Rank rank, int64_t bytes) const {
  const FlowControl& flow = parts_.flow;
  // Without a round its push is over: the message will be ignored.
  if (!IsMember(rank) || flow.IsLetIn(rank)) return true;
  if (ReservesPushes()) return flow.budget().HasReserved(rank);
  if (flow.budget().Fits(bytes)) return true;
  // A fold under way gives room soon; until then no exception is needed.
  return !flow.budget().folding() && round_->pushes.IsFurthestBehind(rank);
}

void SyncRounds::ResumePaused(Turn& turn) {
  if (!parts_.flow.AnyPaused()) return;
  parts_.flow.Resume(
      [this](Rank rank, int64_t bytes) { return MayTake(rank, bytes); }, turn);
}

bool SyncRounds::IsStalled(Instant now) const {
  // Longer than messages of an honest member are under way.
  constexpr absl::Duration kStalledMin = absl::Seconds(1);
  return std::all_of(round_->pushes.all().begin(), round_->pushes.all().end(),
                     [&](const auto& member) {
                       const auto& [rank, push] = member;
                       if (parts_.flow.IsPaused(rank)) {
                         return parts_.flow.IsPausedSince(rank,
                                                          now - kStalledMin);
                       }
                       return push.closed() || round_->rendezvous.Waits(rank);
                     });
}

// ---- time

void SyncRounds::Tick(Turn& turn) {
  if (!round_.has_value()) return ResumePaused(turn);
  if (parts_.flow.AnyPaused() && !parts_.flow.budget().folding() &&
      IsStalled(turn.now)) {
    parts_.flow.LetInPaused();
  }
  ResumePaused(turn);
}

// ---- for people

Standing SyncRounds::StandingOf(const Worker& worker) const {
  const Rank rank = worker.rank;
  if (!IsMember(rank)) return {};
  const bool waits =
      round_->rendezvous.Waits(rank) || round_->pushes.IsComplete(rank);
  // A member counts before it was given the step: a replacement that never
  // registers must not be waited for without end.
  return {.blocks_others = !waits,
          .waits_for_others = waits,
          .is_blocked = waits || parts_.flow.IsPaused(rank),
          .waits_in = round_->rendezvous.WaitOf(rank)};
}

std::vector<Rank> SyncRounds::WaitedFor() const {
  if (!round_.has_value()) return parts_.ranks.InFlight();
  std::vector<Rank> waited = round_->rendezvous.members().Missing();
  if (waited.empty() || !round_->fixed()) {
    waited = round_->Decide().waiting_for;
  }
  // They have done what they could.
  std::erase_if(waited,
                [this](Rank rank) { return parts_.flow.IsPaused(rank); });
  return waited;
}

}  // namespace cohort
