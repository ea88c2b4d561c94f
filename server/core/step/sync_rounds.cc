#include "server/core/step/sync_rounds.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/ledger/run_progress.h"
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
  StepCut cut = ledger.cursor.Cut(
      BatchSizesOf(candidates), policy.global_batch,
      parts_.ranks.ShareRuleOf(policy.shares.weights, candidates),
      policy.local_steps);
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
  // Groups meet by themselves, so nothing has the moments of all ranks.
  if (MeasuresDrift(parts_.model.version()) || policy.normalization_group > 0 ||
      policy.Keeps(StatisticsKind::kAsync)) {
    return Keep::kAll;
  }
  return policy.Keeps(StatisticsKind::kChief) ? Keep::kFirst : Keep::kNone;
}

bool SyncRounds::Advance(Turn& turn) {
  // The loss alone may leave the attempt as it is: a complete push counts
  // without its sender, and under `wait` its contributions stay.
  if (round_.has_value() && round_->progress.fencing.has_value()) {
    const Turn::Fencing fenced =
        *std::exchange(round_->progress.fencing, std::nullopt);
    if (IsMember(fenced.rank)) AbortAttempt(fenced.reason, turn);
  }
  if (!round_.has_value()) {
    StartRound();
    return round_.has_value();
  }
  if (!SettleUpdates(turn) || !SettleCalls(turn)) return true;
  // The policy reads all pushes, so it is asked only when it may say yes.
  const std::optional<PendingCommit>& commit = round_->progress.commit;
  if (!round_->progress.calls_agree || !commit.has_value() ||
      !commit->complete() ||
      round_->Decide().action != Decision::Action::kApply) {
    return false;
  }
  if (!UpdateStatistics(parts_, *round_, turn)) return false;
  const std::optional<StatisticsUpdate>& update = round_->progress.statistics;
  if (update.has_value() && !update->status.ok()) {
    turn.changed = true;
    turn.end = {.outcome = RunOutcome::kRefused,
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
  Assignment next{.attempt = round_->attempt(),
                  .members = round_->members(),
                  .data_epoch = round_->cut().epoch,
                  .range = round_->range(worker.rank),
                  .batches = round_->cut().batches,
                  .local_steps = round_->local_steps(worker.rank)};
  if (!next.local_steps.empty()) {
    next.local_rate_factor =
        LocalRateFactor(parts_.settings, parts_.ledger, parts_.model);
  }
  return next;
}

bool SyncRounds::GivesAgain(const Worker& worker) const {
  // A replacement has other data than the sender of a push that counts. It
  // would take the verdict for its data.
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
  turn.Warn(absl::StrCat(name, " ends: ", reason));
  AbortRendezvous(over.rendezvous.AllPending(), reason, turn);
  const PushVerdict verdict{
      .verdict = Verdict::kDropped,
      .version = over.step(),
      .reason = absl::StrCat(name, " ended early: ", reason)};
  std::vector<Rank> notified;
  for (Rank rank : over.members()) {
    Worker& worker = parts_.ranks[rank];
    if (!worker.work.trains()) continue;
    // One that is not closed yet is answered when it is.
    const PushKey key = worker.work.key();
    if (over.pushes[rank].closed()) {
      // They learn on their sessions what comes next, so that it does not
      // depend on a stream that the worker may have given up.
      turn.answers_after_notices.push_back(
          DecidePush(parts_, rank, key, verdict));
    } else {
      parts_.ledger.pushes_of(rank).Decide(key, verdict);
    }
    worker.work.End();
    worker.work.SetWaiting(worker.usable());
    if (worker.work.waiting() && over.WasIssued(rank)) notified.push_back(rank);
  }
  parts_.ledger.next_attempt = over.attempt().Next();
  StartRound();
  for (Rank rank : notified) {
    turn.out.push_back(effect::StepAborted{
        .session = parts_.ranks[rank].session,
        .step = over.step(),
        .attempt = over.attempt(),
        .members = round_.has_value() ? round_->members() : RankList(),
        .reason = reason});
  }
  turn.out.push_back(effect::Discard{.what = ended});
}

void SyncRounds::AbortRendezvous(
    const std::vector<RendezvousTable::Pending>& waits,
    const std::string& reason, Turn& turn) {
  for (const RendezvousTable::Pending& wait : waits) {
    turn.out.push_back(effect::ReduceAborted{
        .rank = wait.rank,
        .incarnation = parts_.ranks[wait.rank].incarnation,
        .key = wait.key,
        .reason = reason});
  }
}

bool SyncRounds::SettleUpdates(Turn& turn) {
  Round::Progress& progress = round_->progress;
  if (progress.end_because.has_value()) {
    turn.changed = true;
    turn.end = {.outcome = RunOutcome::kRefused,
                .reason = *progress.end_because};
    return false;
  }
  if (!progress.repeat_because.has_value()) return true;
  const std::string why = *std::move(progress.repeat_because);
  AbortAttempt(why, turn);
  return false;
}

bool SyncRounds::SettleCalls(Turn& turn) {
  const CallsDecision decision = calls_.Settle(*round_, turn);
  if (decision.action == CallsAction::kContinue) return true;
  turn.changed = true;
  if (decision.action == CallsAction::kRepeat) {
    AbortAttempt(decision.why, turn);
  } else if (decision.action == CallsAction::kFence) {
    turn.fencing = {.rank = decision.rank, .reason = decision.why};
    round_->progress.fencing = turn.fencing;
  } else {
    turn.end = {.outcome = RunOutcome::kRefused, .reason = decision.why};
  }
  return false;
}

std::vector<std::pair<Rank, PushKey>> SyncRounds::EndAssignments() {
  std::vector<std::pair<Rank, PushKey>> keys;
  keys.reserve(round_->members().size());
  for (Rank rank : round_->members()) {
    Worker& worker = parts_.ranks[rank];
    COHORT_CHECK(worker.work.busy(),
                 absl::StrCat("rank ", rank.value(), " has no assignment"));
    keys.emplace_back(rank, worker.work.key());
    worker.work.End();
    calls_.NoteStep(rank);
  }
  return keys;
}

void SyncRounds::Commit(Turn& turn) {
  turn.changed = true;
  PublishedStep step = PublishStep(parts_, *round_, turn);
  const std::vector<std::pair<Rank, PushKey>> keys = EndAssignments();
  const auto ended = std::make_shared<const Round>(*std::move(round_));
  const StepCut& cut = ended->cut();
  turn.out.push_back(effect::Discard{.what = ended});
  round_.reset();
  parts_.flow.ForgetLetIn();

  RunLedger& ledger = parts_.ledger;
  const ModelStore& model = parts_.model;
  CommitRecord& record = step.record;
  const bool skipped = step.nonfinite.has_value();
  // The clock counts what was handed out, so that schedules end with the
  // data whatever is dropped.
  ledger.samples += model.model()->plan.own_data ? record.commit_samples
                                                 : cut.end - cut.begin;
  record.samples = ledger.samples;
  ledger.local_steps += cut.local_count();
  record.local_steps = ledger.local_steps;
  record.epoch_ended = ledger.cursor.Take(cut);
  ledger.next_attempt = Attempt(0);
  NoteCommit(parts_, record, std::move(step.observation), TrainingDone(), turn);
  const auto pushes = static_cast<int64_t>(keys.size());
  (skipped ? ledger.counts.pushes_skipped : ledger.counts.pushes_applied) +=
      pushes;
  CountStatistics(
      parts_, skipped ? &StatisticsCounts::dropped : &StatisticsCounts::folded,
      pushes);
  if (skipped) {
    CountNonfinite(parts_, *step.nonfinite, "steps", turn);
  } else {
    ledger.nonfinite_in_row = 0;
  }
  for (const auto& [rank, key] : keys) {
    AnswerPush(parts_, parts_.ranks[rank], key,
               {.verdict = skipped ? Verdict::kSkipped : Verdict::kApplied,
                .version = model.version(),
                .reason = step.nonfinite.value_or("")},
               skipped ? 0 : model.trainable_partitions(), turn);
  }
}

void SyncRounds::GiveUp(Turn& turn) {
  if (!round_.has_value()) return;
  if (round_->progress.commit.has_value()) {
    EndTransaction(*round_->progress.commit, TransactionEnd::kAborted,
                   parts_.model, turn);
  }
  AbortRendezvous(round_->rendezvous.AllPending(),
                  absl::StrCat("the run is over: ", parts_.phase.end_reason()),
                  turn);
  for (const auto& [rank, push] : round_->pushes.all()) {
    parts_.flow.Release(rank, push, turn);
    const Worker& worker = parts_.ranks[rank];
    const bool waits = push.closed() || AwaitsUpdate(*round_, rank);
    if (!waits || !worker.work.busy()) continue;
    AnswerGivenUp(parts_, rank, worker.work.key(), turn);
  }
}

// ---- messages of one push

ArrivedPush::Arrival SyncRounds::EnterOpening(Worker& worker,
                                              const PushKey& key,
                                              const PushOpening& opening) {
  worker.kept_weights.reset();
  // A later update changes other weights than those of the version before.
  if (opening.takes_changes && key.update == 0) {
    worker.kept_weights = {.incarnation = worker.incarnation,
                           .next = opening.version.Next()};
  }
  return round_->pushes.Open(worker.rank, key, opening);
}

void SyncRounds::TookGradient(Worker& worker, int32_t partition, bool fresh,
                              Turn& turn) {
  const std::optional<PendingCommit>& commit = round_->progress.commit;
  if (Discards()) {
    SendUnchanged(parts_, *round_, partition, turn);
    NoteGradient(*round_, worker.rank);
  } else if (fresh) {
    BeginFoldIfComplete(parts_, *round_, partition, turn.now);
    ClaimByPush(worker.rank, turn);
    // Another one may be furthest behind now.
    ResumePaused(turn);
    NoteGradient(*round_, worker.rank);
  } else if (commit.has_value() && commit->update() == round_->update()) {
    SendResult(*commit, partition, worker, KeyOf(*round_, worker), turn);
  }
}

absl::Status SyncRounds::Close(Worker& worker, const PushKey& key,
                               PushClosing closing, Turn& turn) {
  if (key.update != round_->update() || round_->Continues()) {
    return absl::FailedPreconditionError(
        absl::StrCat("push of rank ", worker.rank.value(), ": closed update ",
                     key.update, " of step ", round_->step().value(),
                     ", want the last one closed, which is not opened yet"));
  }
  const ArrivedPush::Arrival arrival =
      round_->pushes.Close(worker.rank, std::move(closing), turn.now);
  CountArrival(worker, arrival, parts_.ledger, turn);
  if (arrival == ArrivedPush::Arrival::kNew) {
    calls_.NoteClosing(*round_, worker.rank);
  }
  ClaimByPush(worker.rank, turn);
  return absl::OkStatus();
}

bool SyncRounds::IsOver(const ReduceKey& key, Rank rank) const {
  if (!parts_.settings.global() || !round_.has_value() ||
      key.step < round_->step()) {
    return true;
  }
  return key.step == round_->step() &&
         (key.attempt < round_->attempt() || round_->WasDropped(rank));
}

absl::Status SyncRounds::Reduce(Worker& worker, MomentsMessage message,
                                Turn& turn) {
  if (IsOver(message.key, worker.rank)) {
    return RefuseReduce(parts_, worker, message.key, turn);
  }
  const bool forward = IsForward(message.key.place);
  COHORT_RETURN_IF_ERROR(
      calls_.Take(*round_, worker, std::move(message), turn));
  if (forward) Claim(worker.rank, turn);
  return absl::OkStatus();
}

void SyncRounds::Folded(FoldReport report, Turn& turn) {
  ResumePaused(turn);
  if (round_.has_value()) {
    TakeStepFold(parts_, *round_, std::move(report), turn);
  }
}

void SyncRounds::MomentsFolded(MomentsFold&& done, Turn& turn) {
  // Otherwise its attempt has been given up since.
  if (!IsPresent(done.key.step, done.key.attempt)) return;
  const ReduceKey key = done.key;
  calls_.Answer(*round_, key,
                round_->rendezvous.Folded(std::move(done), turn.now), turn);
}

void SyncRounds::StatisticsUpdated(StatisticsUpdate&& done, Turn& /*turn*/) {
  if (!IsPresent(done.step, done.attempt)) return;
  round_->progress.statistics = std::move(done);
}

const PendingCommit* SyncRounds::commit() const {
  if (!round_.has_value()) return nullptr;
  const std::optional<PendingCommit>& commit = round_->progress.commit;
  return commit.has_value() ? &*commit : nullptr;
}

// ---- members

void SyncRounds::Claim(Rank rank, Turn& turn) {
  if (round_->Claim(rank)) DropOthersIfFull(turn);
}

void SyncRounds::ClaimByPush(Rank rank, Turn& turn) {
  const bool claims = parts_.settings.global()
                          ? round_->pushes[rank].closed()
                          : round_->pushes.IsComplete(rank);
  if (claims) Claim(rank, turn);
}

void SyncRounds::DropOthersIfFull(Turn& turn) {
  const Decision decision = round_->Decide();
  if (decision.action != Decision::Action::kDropOthers) return;
  const std::vector<Rank>& members = decision.members;
  for (Rank rank : round_->DropOthers(members)) DropFromStep(rank, turn);
  for (const auto& [rank, push] : round_->pushes.all()) {
    parts_.flow.Settle(rank, push);
  }
  ResumePaused(turn);
  for (auto& [key, outcome] :
       round_->rendezvous.DropOthers(members, turn.now)) {
    calls_.Answer(*round_, key, std::move(outcome), turn);
  }
  PrepareCommit(parts_, *round_, turn);
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
  std::vector<RendezvousTable::Pending> waits = round_->rendezvous.AllPending();
  std::erase_if(waits, [rank](const auto& wait) { return wait.rank != rank; });
  AbortRendezvous(waits, reason, turn);
  // It was not given the step, and never will be.
  if (!worker.work.trains()) return;
  const PushKey key = worker.work.key();
  worker.work.End();
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
  worker.work.SetWaiting(worker.usable());
}

void SyncRounds::RemoveCandidate(Rank rank, Turn& turn) {
  parts_.flow.Release(rank, round_->pushes[rank], turn);
  round_->Remove(rank);
  parts_.ranks[rank].work.End();
  DropOthersIfFull(turn);
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

// ---- room for gradients
//
// Where a step waits for all its members, some rank must always be let in, or
// what has come would never be folded: those that have sent the fewest
// partitions are. All workers send partitions in one order, so what the
// furthest behind sends completes a partition that the others have sent, and
// frees it. A rank that leaves out batch-norm calls in which the others wait
// may be paused for a partition that they send only later; then all that are
// paused are let in, so that the step proceeds. Where the first K pushes make a
// step they do not complete each other, and each is let in whole.

bool SyncRounds::MayTake(Rank rank, int64_t bytes) const {
  const FlowControl& flow = parts_.flow;
  // Without a round its push is over: the message will be ignored.
  if (!IsMember(rank) || flow.IsLetIn(rank)) return true;
  if (ReservesPushes()) return flow.budget().HasReserved(rank);
  if (flow.budget().Fits(bytes)) return true;
  // A fold in progress gives room soon; until then no exception is needed.
  return !flow.budget().folding() && round_->pushes.IsFurthestBehind(rank);
}

bool SyncRounds::IsStalled(Instant now) const {
  // Longer than messages of an honest member are in flight.
  constexpr absl::Duration kStalledMin = absl::Seconds(1);
  return std::all_of(round_->pushes.all().begin(), round_->pushes.all().end(),
                     [&](const auto& member) {
                       const auto& [rank, push] = member;
                       if (parts_.flow.IsPaused(rank)) {
                         return parts_.flow.IsPausedSince(rank,
                                                          now - kStalledMin);
                       }
                       return push.closed() || round_->rendezvous.Waits(rank) ||
                              AwaitsUpdate(*round_, rank);
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
  const bool waits = round_->rendezvous.Waits(rank) ||
                     round_->pushes.IsComplete(rank) ||
                     AwaitsUpdate(*round_, rank);
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
  std::erase_if(waited, [this](Rank rank) {
    return parts_.flow.IsPaused(rank) || AwaitsUpdate(*round_, rank);
  });
  return waited;
}

}  // namespace cohort
