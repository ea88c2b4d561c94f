// Rendezvous, folds and the commit of a synchronous step.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/ledger/run_progress.h"
#include "server/core/statistics/call_names.h"
#include "server/core/statistics/moments_checks.h"
#include "server/core/step/push_outcome.h"
#include "server/core/step/reduce_checks.h"
#include "server/core/step/sync_rounds.h"

namespace cohort {

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
  const ReduceKey& key = message.key;
  if (IsOver(key, worker.rank)) {
    return RefuseReduce(parts_, worker, key, turn);
  }
  const std::vector<BatchNormSpec>& layers = parts_.model.batch_norms();
  COHORT_RETURN_IF_ERROR(
      CheckReduce(*round_, layers, worker.rank, key, message.moments));
  const bool finite = IsUsable(key.place.phase, message.moments);
  RendezvousTable::Outcome outcome = round_->rendezvous.Contribute(
      key, worker.rank, std::move(message.moments), turn.now, message.extents);
  if (outcome.fresh) worker.last_progress = turn.now;
  if (outcome.repeated) {
    CountArrival(worker,
                 outcome.mismatch ? ArrivedPush::Arrival::kMismatch
                                  : ArrivedPush::Arrival::kRepeated,
                 parts_.ledger, turn);
  }
  if (!outcome.repeated && round_->pushes[worker.rank].closed()) {
    NoteFault(worker.rank,
              CallAfterClosing(*round_, worker.rank, key.place, layers));
  }
  if (!finite && !outcome.repeated) {
    NoteNonfinite(absl::StrCat("rank ", worker.rank.value(), ": moments of ",
                               CallNameOf(key.place, layers)));
  }
  AnswerRendezvous(key, std::move(outcome), turn);
  if (key.place.phase == ReducePhase::kForward) Claim(worker.rank, turn);
  return absl::OkStatus();
}

void SyncRounds::MomentsFolded(MomentsFold done, Turn& turn) {
  // Otherwise it is of an attempt that was given up meanwhile.
  if (!round_.has_value() || round_->step() != done.key.step ||
      round_->attempt() != done.key.attempt) {
    return;
  }
  const ReduceKey key = done.key;
  AnswerRendezvous(key, round_->rendezvous.Folded(std::move(done), turn.now),
                   turn);
}

void SyncRounds::AnswerRendezvous(const ReduceKey& key,
                                  RendezvousTable::Outcome outcome,
                                  Turn& turn) {
  if (outcome.fold.has_value()) {
    turn.out.push_back(effect::FoldMoments{.job = *std::move(outcome.fold)});
  }
  if (outcome.nonfinite) {
    NoteNonfinite(
        absl::StrCat("combined moments of ",
                     CallNameOf(key.place, parts_.model.batch_norms())));
  }
  for (Rank rank : outcome.answer) {
    Worker& worker = parts_.ranks[rank];
    // Only from now on does it hold anyone up. A stored answer that it has had
    // before is no news.
    if (!outcome.repeated || outcome.fresh) worker.last_progress = turn.now;
    turn.out.push_back(effect::ReduceResult{.rank = rank,
                                            .incarnation = worker.incarnation,
                                            .key = key,
                                            .moments = outcome.result});
  }
}

void SyncRounds::NoteNonfinite(std::string what) {
  std::optional<std::string>& nonfinite = round_->progress.nonfinite;
  if (!nonfinite.has_value()) nonfinite = std::move(what);
}

void SyncRounds::PrepareCommit(Turn& turn) {
  if (!round_->fixed() || !round_->pushes.AllOpened()) return;
  const PushOpening& lowest = round_->pushes.LowestOpening();
  if (!lowest.learning_rates.empty()) {
    parts_.ledger.sent_learning_rate = lowest.learning_rates.front();
  }
  CommitPlan plan =
      parts_.model.Complete({.contributors = round_->pushes.Contributors(),
                             .learning_rate = LearningRateNow(
                                 parts_.settings, parts_.ledger, parts_.model),
                             .group_rates = lowest.learning_rates,
                             .loss_weight = round_->pushes.GradientWeight()});
  round_->progress.commit.emplace(plan, parts_.model.model(),
                                  parts_.settings.options().optimizer);
  turn.out.push_back(command::Prepare{.plan = std::move(plan)});
  for (int32_t p = 0; p < parts_.model.partitions(); ++p) {
    NoteFoldIfComplete(p, turn.now);
  }
}

void SyncRounds::NoteFoldIfComplete(int32_t partition, Instant now) {
  std::optional<PendingCommit>& commit = round_->progress.commit;
  if (!commit.has_value() || commit->HasBegun(partition) ||
      !round_->pushes.HasArrived(partition)) {
    return;
  }
  std::optional<Instant>& first_fold = round_->progress.first_fold;
  if (!first_fold.has_value()) first_fold = now;
  commit->Begin(partition);
  parts_.flow.budget().BeginFold(round_->pushes.BeginFold(partition));
}

const PendingCommit* SyncRounds::commit() const {
  if (!round_.has_value()) return nullptr;
  const std::optional<PendingCommit>& commit = round_->progress.commit;
  return commit.has_value() ? &*commit : nullptr;
}

void SyncRounds::Folded(FoldReport report, Turn& turn) {
  ResumePaused(turn);
  const int32_t partition = report.partition;
  const bool prepared = report.prepared;
  // Otherwise it is of an attempt that was given up meanwhile.
  if (!round_.has_value() || !round_->progress.commit.has_value() ||
      !TakeFold(std::move(report), *round_->progress.commit, turn) ||
      !prepared) {
    return;
  }
  for (Rank rank : round_->members()) {
    const Worker& worker = parts_.ranks[rank];
    // Tentative weights are of no use to a rank that is not there, or
    // that has not reached this step again.
    if (!worker.usable() || !worker.outstanding.has_value()) continue;
    SendResult(*round_->progress.commit, partition, worker,
               KeyOf(*worker.outstanding), turn);
  }
}

bool SyncRounds::SettleCalls(Turn& turn) {
  Round::Progress& progress = round_->progress;
  if (progress.calls_agree || round_->pushes.all().empty()) return true;
  if (progress.fault.has_value()) {
    EndFault(*std::exchange(progress.fault, std::nullopt), turn);
    return false;
  }
  // Other ranks may still become members.
  if (!round_->fixed()) return true;
  const bool global = parts_.settings.global();
  if (global && !CompleteWithoutAbsent(turn)) return false;
  // A closed push does not change any more.
  if (!round_->pushes.AllClosed()) return true;
  const std::optional<std::string> unpaired =
      FindUnpairedCalls(*round_, parts_.model.batch_norms(), global);
  if (unpaired.has_value()) {
    EndMismatch(*unpaired, turn);
    return false;
  }
  progress.calls_agree = true;
  return true;
}

// Each group continues even if another one is doomed, so what an attempt
// teaches does not depend on which of them is faster.
bool SyncRounds::CompleteWithoutAbsent(Turn& turn) {
  RendezvousTable& rendezvous = round_->rendezvous;
  for (size_t group : rendezvous.TakeRested()) {
    if (rendezvous.IsDoomed(group) || !rendezvous.members().AnyWaits(group))
      continue;
    const std::vector<CallPlace> open = rendezvous.OpenForward(group);
    if (open.empty()) {
      EndMismatch(StuckText(*round_, group, parts_.model.batch_norms()), turn);
      return false;
    }
    const CallPlace& first = open[parts_.ledger.call_order.First(open)];
    AnswerRendezvous(
        {.step = round_->step(), .attempt = round_->attempt(), .place = first},
        rendezvous.CompleteWith(first, group, turn.now), turn);
  }
  if (!rendezvous.members().AllAtRest() || !rendezvous.FirstLate()) return true;
  EndDoomed(turn);
  return false;
}

void SyncRounds::EndDoomed(Turn& turn) {
  const std::vector<BatchNormSpec>& layers = parts_.model.batch_norms();
  if (!parts_.ledger.call_order.Learn(round_->rendezvous.calls().Sequences(),
                                      round_->step())) {
    EndMismatch(ContradictionText(*round_, layers), turn);
    return;
  }
  ++parts_.ledger.counts.steps_repeated_for_order;
  AbortAttempt(absl::StrCat(LateText(*round_, layers),
                            "; the step is repeated in the order of calls "
                            "that this has shown"),
               turn);
}

void SyncRounds::EndMismatch(const std::string& text, Turn& turn) {
  turn.changed = true;
  turn.end = {.outcome = RunOutcome::kModelMismatch, .reason = text};
}

void SyncRounds::EndFault(const Round::Progress::Fault& fault, Turn& turn) {
  turn.changed = true;
  // The step is full without it.
  if (!IsMember(fault.rank)) return;
  if (!fault.contradicts_itself) {
    AbortAttempt(absl::StrCat(fault.text, "; the step is repeated"), turn);
    return;
  }
  if (fenced_.contains(fault.rank)) {
    EndMismatch(absl::StrCat(fault.text, "; rank ", fault.rank.value(),
                             " was already replaced because of such a "
                             "difference; start all workers with the same "
                             "program and model"),
                turn);
    return;
  }
  fenced_.insert(fault.rank);
  fencing_ = {.rank = fault.rank,
              .step = round_->step(),
              .attempt = round_->attempt(),
              .reason = fault.text};
  turn.fencing = {.rank = fencing_->rank, .reason = fencing_->reason};
}

// The loss alone may leave the attempt as it is: a complete push counts
// without its sender, and under `wait` its contributions stay.
void SyncRounds::EndAttemptOf(const Fenced& fenced, Turn& turn) {
  if (!IsMember(fenced.rank) || round_->step() != fenced.step ||
      round_->attempt() != fenced.attempt) {
    return;
  }
  AbortAttempt(fenced.reason, turn);
}

std::vector<std::pair<Rank, PushKey>> SyncRounds::EndAssignments() {
  std::vector<std::pair<Rank, PushKey>> keys;
  keys.reserve(round_->members().size());
  for (Rank rank : round_->members()) {
    Worker& worker = parts_.ranks[rank];
    COHORT_CHECK(worker.outstanding.has_value(),
                 absl::StrCat("rank ", rank.value(), " has no assignment"));
    keys.emplace_back(rank, KeyOf(*worker.outstanding));
    worker.outstanding.reset();
    fenced_.erase(rank);
  }
  return keys;
}

void SyncRounds::NoteFault(Rank rank, ClosingFault fault) {
  if (round_->progress.fault.has_value()) return;
  round_->progress.fault = {.rank = rank,
                            .text = std::move(fault.text),
                            .contradicts_itself = fault.contradicts_itself};
}

void SyncRounds::NoteClosing(Rank rank) {
  round_->rendezvous.NoteClosed(rank);
  if (parts_.settings.global()) {
    std::optional<ClosingFault> fault =
        FindClosingFault(*round_, rank, parts_.model.batch_norms());
    if (fault.has_value()) NoteFault(rank, *std::move(fault));
  }
  std::optional<std::string> bad =
      NonfiniteMoments(parts_.model, rank, round_->pushes[rank]);
  if (!bad.has_value()) return;
  round_->progress.nonfinite_closings[rank] = *std::move(bad);
}

bool SyncRounds::UpdateStatistics(Turn& turn) {
  Round::Progress& progress = round_->progress;
  if (progress.statistics.has_value()) return true;
  if (progress.updating_statistics) return false;
  for (const auto& [rank, text] : progress.nonfinite_closings) {
    if (round_->IsMember(rank)) NoteNonfinite(text);
  }
  if (progress.nonfinite.has_value() ||
      progress.commit->nonfinite().has_value()) {
    return true;
  }
  const bool global = parts_.settings.global();
  StatisticsUpdate job{
      .step = round_->step(),
      .attempt = round_->attempt(),
      .kept = parts_.model.statistics(),
      .layers = {parts_.model.model(), &parts_.model.batch_norms()},
      .samples_reference =
          SamplesReference(parts_.settings.policy(), parts_.ranks),
      .sets = *parts_.model.current()->statistics};
  if (global) {
    job.combined = round_->rendezvous.ForwardResults();
    job.forward = round_->rendezvous.TakeForward();
  }
  job.moments = std::make_shared<const std::vector<RankMoments>>(
      TakeMoments(*round_, global, parts_.model.batch_norms().size()));
  if (ChannelsOf(job) <= parts_.settings.options().moments_inline_max) {
    progress.statistics = RunStatisticsUpdate(std::move(job));
    return true;
  }
  progress.updating_statistics = true;
  turn.out.push_back(effect::UpdateStatistics{.job = std::move(job)});
  return false;
}

void SyncRounds::StatisticsUpdated(StatisticsUpdate done, Turn& /*turn*/) {
  // Otherwise it is of an attempt that was given up meanwhile.
  if (!round_.has_value() || round_->step() != done.step ||
      round_->attempt() != done.attempt) {
    return;
  }
  round_->progress.statistics = std::move(done);
}

void SyncRounds::Commit(Turn& turn) {
  turn.changed = true;
  RunLedger& ledger = parts_.ledger;
  ModelStore& model = parts_.model;
  const PendingCommit& commit = *round_->progress.commit;
  const std::optional<StatisticsUpdate>& updated = round_->progress.statistics;
  if (updated.has_value() && updated->overflow.has_value()) {
    NoteNonfinite(OverflowText(model, *updated->overflow));
  }
  // If both are bad, the gradient is named.
  std::optional<std::string> nonfinite = round_->progress.nonfinite;
  if (commit.nonfinite().has_value()) {
    nonfinite = NonfiniteText(model, *commit.nonfinite());
    NoteNonfinite(*nonfinite);
  }
  const bool skipped = nonfinite.has_value();
  if (skipped) {
    model.Publish(Successor(
        *model.current(),
        {.statistics = *model.current()->statistics,
         .front_end_state = round_->pushes.TakeLowestFrontEndState()}));
  } else {
    StatisticsUpdate& update = *round_->progress.statistics;
    if (MeasuresDrift() && update.moments->size() > 1) {
      turn.out.push_back(effect::MeasureDrift{
          .model = model.model(), .moments = std::move(update.moments)});
    }
    model.Publish(Successor(
        *model.current(),
        {.statistics = std::move(update.sets),
         .front_end_state = round_->pushes.TakeLowestFrontEndState()}));
  }
  EndTransaction(
      commit, skipped ? TransactionEnd::kSkipped : TransactionEnd::kCommitted,
      model, turn);
  WarnOfSameBatches(parts_, ledger.same_batches.NoteStep(DigestsOf(*round_)),
                    turn);
  CommitRecord record = RecordOf(*round_);
  record.version = model.version();
  CommitObservation observation = TakeObservation(*round_, turn.now);
  const std::vector<std::pair<Rank, PushKey>> keys = EndAssignments();
  const StepCut cut = round_->cut();
  turn.out.push_back(effect::Discard{
      .what = std::make_shared<const Round>(*std::move(round_))});
  round_.reset();
  parts_.flow.ForgetLetIn();

  // The clock counts what was handed out, so that schedules end with the
  // data whatever is dropped.
  ledger.samples += model.model()->plan.own_data ? record.commit_samples
                                                 : cut.end - cut.begin;
  record.samples = ledger.samples;
  record.epoch_ended = ledger.cursor.Take(cut);
  ledger.next_attempt = Attempt(0);
  NoteCommit(parts_, record, std::move(observation), TrainingDone(), turn);
  const auto pushes = static_cast<int64_t>(keys.size());
  (skipped ? ledger.counts.pushes_skipped : ledger.counts.pushes_applied) +=
      pushes;
  CountStatistics(
      parts_, skipped ? &StatisticsCounts::dropped : &StatisticsCounts::folded,
      pushes);
  if (skipped) {
    CountNonfinite(parts_, *nonfinite, "steps", turn);
  } else {
    ledger.nonfinite_in_row = 0;
  }
  for (const auto& [rank, key] : keys) {
    AnswerPush(parts_, parts_.ranks[rank], key,
               {.verdict = skipped ? Verdict::kSkipped : Verdict::kApplied,
                .version = model.version(),
                .reason = nonfinite.value_or("")},
               skipped ? 0 : model.trainable_partitions(), turn);
  }
}

void SyncRounds::GiveUp(Turn& turn) {
  if (!round_.has_value()) return;
  if (round_->progress.commit.has_value()) {
    EndTransaction(*round_->progress.commit, TransactionEnd::kAborted,
                   parts_.model, turn);
  }
  for (const auto& pending : round_->rendezvous.AllPending()) {
    turn.out.push_back(effect::ReduceAborted{
        .rank = pending.rank,
        .incarnation = parts_.ranks[pending.rank].incarnation,
        .key = pending.key,
        .reason =
            absl::StrCat("the run is over: ", parts_.phase.end_reason())});
  }
  for (const auto& [rank, push] : round_->pushes.all()) {
    parts_.flow.Release(rank, push, turn);
    const Worker& worker = parts_.ranks[rank];
    if (!push.closed() || !worker.outstanding.has_value()) continue;
    AnswerGivenUp(parts_, rank, KeyOf(*worker.outstanding), turn);
  }
}

}  // namespace cohort
