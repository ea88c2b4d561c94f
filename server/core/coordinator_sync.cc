// Synchronous steps of the coordinator.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/core/coordinator.h"

namespace cohort {

bool Coordinator::IsMember(Rank rank) const {
  return round_.has_value() && round_->pushes.contains(rank);
}

std::vector<Rank> Coordinator::Candidates() const {
  const bool waits = settings_.waits_for_lost();
  std::vector<Rank> candidates;
  for (const Worker& worker : ranks_.all()) {
    // Under `wait` a vacant rank stays a member: its replacement will compute
    // its share. Otherwise a broken stream is no loss yet: if it becomes one,
    // the attempt ends.
    const bool takes_part = waits ? worker.ever_registered
                                  : worker.state != Worker::State::kVacant &&
                                        worker.registered &&
                                        !worker.leaves_because.has_value();
    if (takes_part) candidates.push_back(worker.rank);
  }
  return candidates;
}

void Coordinator::StartStep() {
  if (ledger_.ended() || ledger_.draining() ||
      settings_.pending().has_value() || ledger_.cursor().exhausted()) {
    return;
  }
  const std::vector<Rank> candidates = Candidates();
  if (candidates.empty()) return;
  std::vector<int64_t> batch_sizes;
  for (Rank rank : candidates) batch_sizes.push_back(ranks_[rank].batch_size);

  Round round{.step = model_.version(), .attempt = ledger_.next_attempt()};
  round.cut = ledger_.cursor().Cut(batch_sizes);
  const auto partitions = model_.partitions();
  std::vector<Rank> members;
  for (size_t i = 0; i < candidates.size(); ++i) {
    // A rank without samples is no member of the step.
    if (round.cut.ranges[i].empty()) continue;
    members.push_back(candidates[i]);
    round.ranges[candidates[i]] = round.cut.ranges[i];
    round.pushes.try_emplace(candidates[i], partitions);
  }
  round.arrived.resize(model_.model()->partitions.size());
  round.fixed =
      settings_.policy().pushes_min == 0 ||
      settings_.policy().pushes_min >= static_cast<int32_t>(members.size());
  round.members = members;
  round.rendezvous =
      RendezvousTable(std::move(members),
                      {.fixed = round.fixed,
                       .group_size = settings_.policy().normalization_group});
  round_ = std::move(round);
}

RoundView Coordinator::ViewOfRound() const {
  RoundView view{.fixed = round_->fixed, .claims = round_->claims};
  for (const auto& [rank, push] : round_->pushes) {
    view.pushes.push_back(
        {.rank = rank,
         .complete = push.Complete(model_.trainable_partitions())});
  }
  return view;
}

bool Coordinator::ClaimedByMoments() const {
  return settings_.global() && !model_.batch_norms().empty();
}

void Coordinator::Claim(Rank rank, Instant now, Effects& out) {
  std::vector<Rank>& claims = round_->claims;
  if (round_->fixed ||
      std::find(claims.begin(), claims.end(), rank) != claims.end()) {
    return;
  }
  claims.push_back(rank);
  const Decision decision = settings_.aggregation().Decide(ViewOfRound());
  if (decision.action == Decision::Action::kFix) {
    FixMembers(decision.members, now, out);
  }
}

void Coordinator::FixMembers(const std::vector<Rank>& members, Instant now,
                             Effects& out) {
  for (Rank rank : std::exchange(round_->members, members)) {
    if (std::find(members.begin(), members.end(), rank) == members.end()) {
      DropFromStep(rank, now, out);
    }
  }
  round_->fixed = true;
  for (const auto& [rank, push] : round_->pushes) SettlePush(rank, push);
  ResumePaused(now, out);
  for (const auto& [key, outcome] : round_->rendezvous.Fix(members, now)) {
    AnswerRendezvous({.step = round_->step,
                      .attempt = round_->attempt,
                      .layer = key.layer,
                      .call = key.call,
                      .phase = key.phase},
                     outcome, now, out);
  }
  OpenTransaction(now, out);
}

void Coordinator::ErasePush(Rank rank) {
  const Push& push = round_->pushes.at(rank);
  ReleasePush(rank, push);
  if (push.opened()) --round_->opened;
  if (push.closed()) --round_->closed_count;
  for (size_t p = 0; p < round_->arrived.size(); ++p) {
    if (push.Has(static_cast<int32_t>(p))) --round_->arrived[p];
  }
  round_->pushes.erase(rank);
}

void Coordinator::DropFromStep(Rank rank, Instant now, Effects& out) {
  const std::string reason =
      absl::StrCat("step ", round_->step.value(), " is full with the first ",
                   round_->members.size(), " pushes");
  const bool opened = round_->pushes.at(rank).opened();
  ErasePush(rank);
  round_->dropped.insert(rank);
  Worker& worker = ranks_[rank];
  for (const auto& pending : round_->rendezvous.AllPending()) {
    if (pending.rank != rank) continue;
    out.push_back(effect::ReduceAborted{.rank = rank,
                                        .incarnation = worker.incarnation,
                                        .key = pending.key,
                                        .reason = reason});
  }
  if (!worker.outstanding.has_value() ||
      worker.outstanding->kind != AssignmentKind::kTrain) {
    return;  // It was not given the step, and never will be.
  }
  const PushKey key{.sequence = worker.outstanding->sequence,
                    .attempt = worker.outstanding->attempt};
  worker.outstanding.reset();
  ++ledger_.counts.pushes_dropped;
  CountStatistics(&StatisticsCounts::dropped, 1);
  // What it may still be computing is of no use any more.
  if (worker.usable()) {
    out.push_back(effect::StepAborted{.session = worker.session,
                                      .step = round_->step,
                                      .attempt = round_->attempt,
                                      .members = round_->members,
                                      .reason = reason});
  }
  PushVerdict verdict{
      .verdict = Verdict::kDropped, .version = round_->step, .reason = reason};
  if (opened) {
    Answer(worker, key, std::move(verdict), 0, now, out);
    return;
  }
  ledger_.pushes_of(rank).Decide(key, verdict);
  worker.waiting = worker.usable();
}

void Coordinator::RemoveCandidate(Rank rank, Instant now, Effects& out) {
  ErasePush(rank);
  round_->members = round_->members.Without(rank);
  ranks_[rank].outstanding.reset();
  const Decision decision = settings_.aggregation().Decide(ViewOfRound());
  if (decision.action == Decision::Action::kFix) {
    FixMembers(decision.members, now, out);
    TryCommit(now, out);
  }
}

void Coordinator::AbortAttempt(const std::string& reason, Instant now,
                               Effects& out) {
  Round over = *std::move(round_);
  round_.reset();
  for (const auto& [rank, push] : over.pushes) ReleasePush(rank, push);
  let_in_.clear();
  ResumeAll(out);
  ++ledger_.counts.steps_aborted;
  out.push_back(effect::Log{
      .severity = Severity::kWarning,
      .text = absl::StrCat("step ", over.step.value(), " attempt ",
                           over.attempt.value(), " ends: ", reason)});
  for (const RendezvousTable::Pending& pending : over.rendezvous.AllPending()) {
    out.push_back(
        effect::ReduceAborted{.rank = pending.rank,
                              .incarnation = ranks_[pending.rank].incarnation,
                              .key = pending.key,
                              .reason = reason});
  }
  const PushVerdict verdict{
      .verdict = Verdict::kDropped,
      .version = over.step,
      .reason = absl::StrCat("step ", over.step.value(), " attempt ",
                             over.attempt.value(), " ended early: ", reason)};
  std::map<Rank, PushKey> closed;
  for (Rank rank : over.members) {
    Worker& worker = ranks_[rank];
    if (!worker.outstanding.has_value() ||
        worker.outstanding->kind != AssignmentKind::kTrain) {
      continue;
    }
    const PushKey key{.sequence = worker.outstanding->sequence,
                      .attempt = worker.outstanding->attempt};
    // One that is not closed yet is answered when it is.
    PushHistory& history = ledger_.pushes_of(rank);
    history.Decide(key, verdict);
    if (over.pushes.at(rank).closed()) {
      closed[rank] = key;
      history.Find(key)->answered = true;
    }
    worker.outstanding.reset();
    worker.waiting = worker.usable();
  }
  ledger_.EndAttempt(over.attempt);
  StartStep();
  for (Rank rank : over.members) {
    const Worker& worker = ranks_[rank];
    if (!worker.waiting || !over.issued.contains(rank)) continue;
    out.push_back(effect::StepAborted{
        .session = worker.session,
        .step = over.step,
        .attempt = over.attempt,
        .members = round_.has_value() ? round_->members : RankList(),
        .reason = reason});
  }
  NotifyWaiting(now, out);
  // What comes next they have been told on their sessions, so that it does not
  // depend on a stream that the worker may have given up.
  for (const auto& [rank, key] : closed) {
    Tell(ranks_[rank], key, verdict, 0, now, out);
  }
}

void Coordinator::OpenTransaction(Instant now, Effects& out) {
  if (!round_->fixed || round_->opened < round_->pushes.size()) return;
  double loss_weight = 0;
  for (const auto& [rank, push] : round_->pushes) {
    loss_weight += push.opening().loss_weight;
  }
  round_->transaction =
      model_.NewTransaction({.optimizer = settings_.options().optimizer,
                             .learning_rate = learning_rate(),
                             .loss_weight = loss_weight});
  for (size_t p = 0; p < model_.model()->partitions.size(); ++p) {
    StartFoldIfReady(static_cast<int32_t>(p), now, out);
  }
}

void Coordinator::StartFoldIfReady(int32_t partition, Instant now,
                                   Effects& out) {
  if (!round_->transaction.has_value()) return;
  if (round_->transaction->Started(partition)) return;
  if (round_->arrived[static_cast<size_t>(partition)] < round_->pushes.size()) {
    return;
  }
  // std::map: ascending ranks.
  std::vector<std::pair<Rank, Push*>> pushes;
  for (auto& [rank, push] : round_->pushes) pushes.emplace_back(rank, &push);
  if (!round_->first_fold.has_value()) round_->first_fold = now;
  FoldJob job = round_->transaction->Fold(partition, pushes);
  budget_.BeginFold(GradientBytes(job));
  out.push_back(effect::Fold{.job = std::move(job)});
}

void Coordinator::TryCommit(Instant now, Effects& out) {
  if (!SettleCalls(now, out)) return;
  if (!round_->transaction.has_value() || !round_->transaction->complete()) {
    return;
  }
  if (settings_.aggregation().Decide(ViewOfRound()).action ==
      Decision::Action::kApply) {
    CommitStep(now, out);
  }
}

std::vector<RankMoments> Coordinator::TakeStepMoments() {
  std::vector<RankMoments> moments;
  for (auto& [rank, push] : round_->pushes) {
    moments.push_back({.rank = rank,
                       .samples = push.opening().samples,
                       .calls = settings_.global()
                                    ? round_->rendezvous.TakeForwardOf(rank)
                                    : push.TakeMoments()});
  }
  return moments;
}

CommitRecord Coordinator::RecordOf(const Round& round) const {
  CommitRecord record{.version = model_.version(),
                      .data_epoch = round.cut.epoch,
                      .learning_rate = round.transaction->learning_rate(),
                      .members = round.members,
                      .gradient_norm = round.transaction->gradient_norm(),
                      .skipped = round.nonfinite.has_value()};
  int64_t correct = 0;
  for (const auto& [rank, push] : round.pushes) {
    record.commit_samples += push.opening().samples;
    record.loss += push.closing().loss_sum;
    record.loss_weight += push.opening().loss_weight;
    correct += push.closing().correct;
    record.labels += push.closing().labels;
  }
  record.loss = record.loss_weight > 0 ? record.loss / record.loss_weight : 0;
  if (record.labels > 0) {
    record.accuracy =
        static_cast<double>(correct) / static_cast<double>(record.labels);
  }
  return record;
}

CommitObservation Coordinator::ObservationOf(Round& round, Instant now) const {
  CommitObservation seen;
  for (const auto& [rank, closed] : round.closed) {
    if (round.pushes.contains(rank)) {
      seen.barrier_waits.push_back(now - closed);
      seen.last_arrival = rank;
    }
  }
  if (round.members.size() < 2) seen.last_arrival.reset();
  if (round.first_fold.has_value()) seen.aggregation = now - *round.first_fold;
  seen.forward = std::move(round.rendezvous.observed(ReducePhase::kForward));
  seen.backward = std::move(round.rendezvous.observed(ReducePhase::kBackward));
  return seen;
}

std::map<Rank, PushKey> Coordinator::EndAssignmentsOf(const Round& round) {
  std::map<Rank, PushKey> keys;
  for (Rank rank : round.members) {
    Worker& worker = ranks_[rank];
    COHORT_CHECK(worker.outstanding.has_value(),
                 absl::StrCat("rank ", rank.value(), " has no assignment"));
    keys[rank] = {.sequence = worker.outstanding->sequence,
                  .attempt = worker.outstanding->attempt};
    worker.outstanding.reset();
  }
  return keys;
}

void Coordinator::CommitStep(Instant now, Effects& out) {
  for (const auto& [rank, push] : round_->pushes) {
    if (round_->nonfinite.has_value()) break;
    round_->nonfinite = NonfiniteMoments(rank, push);
  }
  const std::optional<NonfiniteGradient>& bad =
      round_->transaction->nonfinite();
  if (bad.has_value()) round_->nonfinite = NonfiniteText(*bad);
  const bool skipped = round_->nonfinite.has_value();
  std::vector<LayerDrift> drift;
  StatisticsSets statistics = *model_.current()->statistics;
  if (skipped) {
    model_.Publish(Successor(*model_.current(), std::move(statistics)));
  } else {
    CombinedMoments combined;
    if (settings_.global()) combined = round_->rendezvous.ForwardResults();
    const std::vector<RankMoments> moments = TakeStepMoments();
    if (model_.version().value() % kDriftEvery == 0) {
      drift = StepDrift(model_.batch_norms(), moments);
    }
    model_.statistics().ApplyStep(moments, samples_reference(), statistics,
                                  combined);
    model_.Publish(round_->transaction->Next(std::move(statistics)));
  }
  Round round = *std::move(round_);
  round_.reset();
  let_in_.clear();

  CommitRecord record = RecordOf(round);
  // The clock counts what was handed out, so that schedules end with the
  // data whatever is dropped.
  ledger_.AddSamples(round.cut.end - round.cut.begin);
  record.samples = ledger_.samples();
  record.epoch_ended = ledger_.cursor().Take(round.cut);
  const std::map<Rank, PushKey> keys = EndAssignmentsOf(round);
  for (Rank rank : round.members) fenced_.erase(rank);
  CommitObservation observation = ObservationOf(round, now);
  observation.drift = std::move(drift);
  AfterCommit(record, std::move(observation), out);

  (skipped ? ledger_.counts.pushes_skipped : ledger_.counts.pushes_applied) +=
      static_cast<int64_t>(keys.size());
  CountStatistics(
      skipped ? &StatisticsCounts::dropped : &StatisticsCounts::folded,
      static_cast<int64_t>(keys.size()));
  const bool stop = skipped && CountNonfinite(*round.nonfinite, out);
  if (!skipped) ledger_.CountFinite();
  ledger_.BeginAttempts();
  if (!stop) StartStep();
  for (const auto& [rank, key] : keys) {
    Answer(ranks_[rank], key,
           {.verdict = skipped ? Verdict::kSkipped : Verdict::kApplied,
            .version = model_.version(),
            .reason = skipped ? *round.nonfinite : ""},
           skipped ? 0 : model_.trainable_partitions(), now, out);
  }
  if (stop) {
    End(RunOutcome::kNonfinite,
        absl::StrCat(ledger_.nonfinite_in_row(),
                     " steps in a row were not finite; ",
                     "the last: ", *round.nonfinite),
        out);
    return;
  }
  Advance(now, out);
}

}  // namespace cohort
