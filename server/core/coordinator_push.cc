// What the coordinator does with one push, whatever the policy.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"
#include "server/core/limits.h"
#include "server/core/moments_checks.h"
#include "server/core/optimizer/schedule.h"

namespace cohort {

absl::StatusOr<Push*> Coordinator::FindPush(Worker& worker,
                                            const PushKey& key) {
  const std::optional<Assignment>& given = worker.outstanding;
  // Pushes under way when the run ends change nothing any more.
  if (!ledger_.ended() && given.has_value() &&
      given->kind == AssignmentKind::kTrain &&
      given->sequence == key.sequence && given->attempt == key.attempt) {
    if (settings_.sync()) return &round_->pushes.at(worker.rank);
    const auto partitions = model_.partitions();
    return &assembling_.try_emplace(worker.rank, partitions).first->second;
  }
  PushHistory& history = ledger_.pushes_of(worker.rank);
  if (history.Find(key) != nullptr || history.Forgotten(key)) return nullptr;
  return absl::FailedPreconditionError(absl::StrCat(
      "no training assignment ", key.sequence.value(), " attempt ",
      key.attempt.value(), " was given to rank ", worker.rank.value(),
      "; its next is ", worker.next_sequence.value(),
      ": push with sequence and attempt of the assignment"));
}

bool Coordinator::InQueue(Rank rank, const PushKey& key) const {
  const auto is = [&](const Arrival& arrival) {
    return arrival.rank == rank && arrival.key == key;
  };
  return (applying_.has_value() && is(*applying_)) ||
         std::any_of(arrivals_.begin(), arrivals_.end(), is);
}

void Coordinator::AnswerOldPush(Worker& worker, const PushKey& key, Instant now,
                                Effects& out) {
  PushHistory& history = ledger_.pushes_of(worker.rank);
  PushHistory::Entry* entry = history.Find(key);
  if (entry == nullptr) {
    // Only of this repetition is it known that it was not applied.
    ++ledger_.counts.pushes_duplicate;
    Tell(worker, key,
         {.verdict = Verdict::kDropped,
          .duplicate = true,
          .version = model_.version(),
          .reason = absl::StrCat(
              "it was decided long ago, and how is not known any more: the "
              "last ",
              PushHistory::kKept, " pushes of a rank are remembered")},
         0, now, out);
    return;
  }
  if (!entry->verdict.has_value()) {
    // Answered once it is decided.
    if (!ledger_.ended() && InQueue(worker.rank, key)) {
      ++ledger_.counts.pushes_duplicate;
      return;
    }
    history.Decide(
        key, {.verdict = Verdict::kDropped,
              .version = model_.version(),
              .reason = ledger_.ended() ? absl::StrCat("the run is over: ",
                                                       ledger_.end_reason())
                                        : "its assignment was withdrawn"});
  }
  PushVerdict verdict = *entry->verdict;
  verdict.duplicate = std::exchange(entry->answered, true);
  if (verdict.duplicate) ++ledger_.counts.pushes_duplicate;
  Tell(worker, key, std::move(verdict), 0, now, out);
}

void Coordinator::AnswerAtTheEnd(Effects& out) {
  const auto answer = [&](Rank rank, const PushKey& key) {
    const Worker& worker = ranks_[rank];
    PushHistory& history = ledger_.pushes_of(rank);
    PushHistory::Entry* entry = history.Find(key);
    if (entry == nullptr || entry->verdict.has_value()) return;
    PushVerdict verdict{
        .verdict = Verdict::kDropped,
        .version = model_.version(),
        .reason = absl::StrCat("the run is over: ", ledger_.end_reason())};
    history.Decide(key, verdict);
    entry->answered = true;
    if (!worker.usable()) return;
    verdict.next = FinishedAssignment(ledger_.end_reason());
    out.push_back(effect::SendVerdict{.rank = rank,
                                      .incarnation = worker.incarnation,
                                      .key = key,
                                      .verdict = std::move(verdict)});
  };
  if (round_.has_value()) {
    for (const auto& [rank, push] : round_->pushes) {
      const std::optional<Assignment>& given = ranks_[rank].outstanding;
      if (!push.closed() || !given.has_value()) continue;
      answer(rank, {.sequence = given->sequence, .attempt = given->attempt});
    }
  }
  if (applying_.has_value()) answer(applying_->rank, applying_->key);
  for (const Arrival& arrival : arrivals_) answer(arrival.rank, arrival.key);
}

void Coordinator::CountArrival(const Worker& worker, Push::Arrival arrival,
                               Effects& out) {
  if (arrival == Push::Arrival::kNew) return;
  ++ledger_.counts.pushes_duplicate;
  if (arrival == Push::Arrival::kRepeated) return;
  ++ledger_.counts.replay_mismatches;
  out.push_back(effect::Log{
      .severity = Severity::kWarning,
      .worker =
          WorkerLife{.rank = worker.rank, .incarnation = worker.incarnation},
      .text = absl::StrCat("rank ", worker.rank.value(),
                           " repeated a message with other content; the "
                           "first one counts")});
}

absl::Status Coordinator::CheckOpening(const Worker& worker,
                                       const PushOpening& opening) const {
  const int64_t wanted = worker.outstanding->range.size();
  if (opening.samples != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("push of rank ", worker.rank.value(), ": got ",
                     opening.samples, " samples, want ", wanted));
  }
  const Version read = opening.version;
  const Version oldest =
      settings_.sync() ? round_->step : worker.outstanding->version;
  const Version newest = settings_.sync() ? round_->step : model_.version();
  if (read < oldest || read > newest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push of rank ", worker.rank.value(), ": got version ", read.value(),
        " read, want ", oldest.value(),
        newest == oldest ? "" : absl::StrCat(" to ", newest.value())));
  }
  const double weight = opening.loss_weight;
  if (weight == 0 ||
      (weight >= limits::kLossWeightMin && weight <= limits::kLossWeightMax)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "push of rank ", worker.rank.value(), ": got loss weight ", weight,
      ", want 0, or ", limits::kLossWeightMin, " to ", limits::kLossWeightMax));
}

absl::Status Coordinator::Open(const Sender& sender, const PushKey& key,
                               const PushOpening& opening, Instant now,
                               Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  COHORT_RETURN_IF_ERROR(RequireRegistered(*worker));
  COHORT_ASSIGN_OR_RETURN(Push * push, FindPush(*worker, key));
  if (push == nullptr) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(CheckOpening(*worker, opening));
  const Push::Arrival arrival = push->Open(opening);
  CountArrival(*worker, arrival, out);
  if (arrival == Push::Arrival::kNew && ReservesPushes()) {
    budget_.Reserve(worker->rank, PushBytes(model_.layout()));
  }
  if (arrival == Push::Arrival::kNew && settings_.sync()) {
    ++round_->opened;
    OpenTransaction(now, out);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckGradient(const GradientMessage& message) const {
  const std::vector<Partition>& partitions = model_.model()->partitions;
  if (message.partition < 0 ||
      message.partition >= static_cast<int32_t>(partitions.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient: got partition ", message.partition,
                     ", want below ", partitions.size()));
  }
  const Partition& partition =
      partitions[static_cast<size_t>(message.partition)];
  const int64_t wanted =
      partition.elements * static_cast<int64_t>(sizeof(float));
  if (!partition.trainable || message.gradient.size_bytes() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient of partition ", message.partition, ": got ",
        message.gradient.size_bytes(), " bytes, want ",
        partition.trainable ? absl::StrCat(wanted) : "none, it is frozen"));
  }
  std::vector<bool> absent(partition.slices.size());
  for (int32_t slice : message.absent_slices) {
    if (slice < 0 || slice >= static_cast<int32_t>(partition.slices.size()) ||
        absent[static_cast<size_t>(slice)]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gradient of partition ", message.partition, ": got absent slice ",
          slice, ", want each at most once and below ",
          partition.slices.size()));
    }
    absent[static_cast<size_t>(slice)] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<Admission> Coordinator::Gradient(const Sender& sender,
                                                const PushKey& key,
                                                GradientMessage& message,
                                                Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  COHORT_RETURN_IF_ERROR(RequireRegistered(*worker));
  COHORT_RETURN_IF_ERROR(CheckGradient(message));
  COHORT_ASSIGN_OR_RETURN(Push * push, FindPush(*worker, key));
  if (push == nullptr) return Admission::kTaken;
  if (!push->opened()) {
    return absl::FailedPreconditionError(
        absl::StrCat("gradient of partition ", message.partition,
                     " came before the push was opened"));
  }
  const int32_t partition = message.partition;
  const int64_t bytes = message.gradient.size_bytes();
  // A partition that has come before takes no room.
  if (!push->Has(partition)) {
    if (!MayTake(worker->rank, bytes)) {
      Paused& paused = paused_[worker->rank];
      if (paused.bytes == 0) paused.since = now;
      paused.bytes = bytes;
      paused.resumed = false;
      return Admission::kPaused;
    }
    paused_.erase(worker->rank);
    if (!budget_.HasReserved(worker->rank)) budget_.Charge(bytes);
  }
  const Push::Arrival arrival =
      push->Add(partition, std::move(message.gradient), message.checksum,
                std::move(message.absent_slices));
  CountArrival(*worker, arrival, out);
  if (!settings_.sync()) return Admission::kTaken;
  if (arrival == Push::Arrival::kNew) {
    ++round_->arrived[static_cast<size_t>(partition)];
    StartFoldIfReady(partition, now, out);
    TakePush(*worker, now, out);
    // Another one may be furthest behind now.
    ResumePaused(now, out);
  } else if (round_->transaction.has_value()) {
    const std::optional<FoldResult>& result =
        round_->transaction->result(partition);
    if (result.has_value()) {
      SendResult(*result, round_->step.Next(), *worker, key, out);
    }
  }
  return Admission::kTaken;
}

void Coordinator::TakePush(const Worker& worker, Instant now, Effects& out) {
  if (!ClaimedByMoments() &&
      round_->pushes.at(worker.rank).Complete(model_.trainable_partitions())) {
    Claim(worker.rank, now, out);
  }
  TryCommit(now, out);
}

absl::Status Coordinator::CheckClosing(const PushClosing& closing) const {
  if (closing.correct < 0 || closing.correct > closing.labels ||
      closing.labels > limits::kLabelsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: got ", closing.correct, " of ", closing.labels,
        " labels correct, want 0 or more of at most ", limits::kLabelsMax));
  }
  const std::vector<BatchNormSpec>& layers = model_.batch_norms();
  if (closing.batch_norm_calls.size() != layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: got call counts of ", closing.batch_norm_calls.size(),
        " batch-norm layers, want ", layers.size()));
  }
  int64_t calls = 0;
  for (int32_t count : closing.batch_norm_calls) {
    if (count < 0 || count > kCallsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: got ", count, " calls, want 0 to ", kCallsMax));
    }
    calls += count;
  }
  const int64_t wanted = settings_.global() ? 0 : calls;
  if (static_cast<int64_t>(closing.moments.size()) != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("closing: got moments of ", closing.moments.size(),
                     " batch-norm calls, want ", wanted));
  }
  for (size_t i = 0; i < closing.moments.size(); ++i) {
    const CallMoments& call = closing.moments[i];
    COHORT_RETURN_IF_ERROR(CheckCallMoments(call, layers));
    COHORT_RETURN_IF_ERROR(
        CheckSpread(layers[static_cast<size_t>(call.layer)], call.moments));
    // Ascending from call 0 of each layer, so that ranks line up by position.
    const bool follows =
        call.call == 0 ? i == 0 || closing.moments[i - 1].layer < call.layer
                       : i > 0 && closing.moments[i - 1].layer == call.layer &&
                             closing.moments[i - 1].call == call.call - 1;
    if (!follows ||
        call.call >=
            closing.batch_norm_calls[static_cast<size_t>(call.layer)]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: moments of ", layers[static_cast<size_t>(call.layer)].name,
          " call ", call.call, " are out of order"));
    }
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Close(const Sender& sender, const PushKey& key,
                                PushClosing closing, Instant now,
                                Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  COHORT_RETURN_IF_ERROR(RequireRegistered(*worker));
  COHORT_ASSIGN_OR_RETURN(Push * push, FindPush(*worker, key));
  if (push == nullptr) {
    AnswerOldPush(*worker, key, now, out);
    return absl::OkStatus();
  }
  // Not of an older one: another policy may have been in force.
  COHORT_RETURN_IF_ERROR(CheckClosing(closing));
  const Push::Arrival arrival = push->Close(std::move(closing));
  CountArrival(*worker, arrival, out);
  if (settings_.sync()) {
    if (arrival == Push::Arrival::kNew) {
      round_->closed.emplace_back(worker->rank, now);
      ++round_->closed_count;
    }
    TakePush(*worker, now, out);
  } else if (push->Complete(model_.trainable_partitions())) {
    EnqueueArrival(*worker, now, out);
  } else {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", sender.rank.value(), " closed its push before it was whole"));
  }
  return absl::OkStatus();
}

double Coordinator::learning_rate() const {
  return LearningRate(
      settings_.options().optimizer,
      {.seen = ledger_.samples(),
       .epoch = !model_.registered() ? 0 : model_.model()->plan.train_samples,
       .total = samples_total()});
}

void Coordinator::SendResult(const FoldResult& result, Version version,
                             const Worker& worker, const PushKey& key,
                             Effects& out) const {
  if (result.weights == nullptr) return;
  out.push_back(effect::SendWeights{.rank = worker.rank,
                                    .incarnation = worker.incarnation,
                                    .key = key,
                                    .partition = result.partition,
                                    .version = version,
                                    .weights = result.weights,
                                    .checksum = result.checksum});
}

void Coordinator::FoldDone(FoldResult result, Instant now, Effects& out) {
  budget_.EndFold(result.gradient_bytes);
  ResumePaused(now, out);
  const bool of_round = round_.has_value() && round_->transaction.has_value() &&
                        round_->transaction->id() == result.transaction;
  const bool of_arrival = applying_transaction_.has_value() &&
                          applying_transaction_->id() == result.transaction;
  // The result of an attempt that was aborted meanwhile, or of a run that is
  // over.
  if (ledger_.ended() || (!of_round && !of_arrival)) return;
  if (of_arrival) {
    for (FoldJob& job : applying_transaction_->Done(std::move(result))) {
      out.push_back(effect::Fold{.job = std::move(job)});
    }
    if (applying_transaction_->complete()) CommitArrival(now, out);
    return;
  }
  const int32_t partition = result.partition;
  for (FoldJob& job : round_->transaction->Done(std::move(result))) {
    out.push_back(effect::Fold{.job = std::move(job)});
  }
  const std::optional<FoldResult>& done =
      round_->transaction->result(partition);
  for (Rank rank : round_->members) {
    if (!done.has_value()) break;
    const Worker& worker = ranks_[rank];
    // Nobody waits for tentative weights on a rank that is not there, or
    // that has not reached this step again.
    if (!worker.usable() || !worker.outstanding.has_value()) continue;
    SendResult(*done, round_->step.Next(), worker,
               {.sequence = worker.outstanding->sequence,
                .attempt = worker.outstanding->attempt},
               out);
  }
  TryCommit(now, out);
}

std::optional<std::string> Coordinator::NonfiniteMoments(
    Rank rank, const Push& push) const {
  for (const CallMoments& call : push.closing().moments) {
    if (IsFinite(call.moments)) continue;
    return absl::StrCat(
        "rank ", rank.value(), ": moments of ",
        model_.batch_norms()[static_cast<size_t>(call.layer)].name);
  }
  return std::nullopt;
}

std::string Coordinator::NonfiniteText(const NonfiniteGradient& where) const {
  const Partition& partition =
      model_.model()->partitions[static_cast<size_t>(where.partition)];
  const Slice& slice = partition.slices[static_cast<size_t>(where.slice)];
  const std::string& name =
      model_.layout().parameters[static_cast<size_t>(slice.parameter)].name;
  if (where.rank.has_value()) {
    return absl::StrCat("rank ", where.rank->value(), ": gradient of ", name);
  }
  return absl::StrCat("sum of the gradients of ", name, " overflows");
}

void Coordinator::AfterCommit(const CommitRecord& record,
                              CommitObservation observation, Effects& out) {
  if (!record.skipped && record.loss_weight > 0)
    ledger_.train_loss = record.loss;
  if (record.epoch_ended)
    pinned_.EvaluateEpoch(record.data_epoch + 1, TrainingDone());
  out.push_back(effect::Committed{.record = record,
                                  .observation = std::move(observation)});
  if (settings_.options().checkpoint_every > 0 &&
      model_.version().value() % settings_.options().checkpoint_every == 0) {
    absl::StatusOr<RunState> state = State();
    COHORT_CHECK(state.ok(), state.status().ToString());
    out.push_back(effect::WriteCheckpoint{.state = *std::move(state)});
  }
}

void Coordinator::Answer(Worker& worker, const PushKey& key,
                         PushVerdict verdict, int32_t weights_partitions,
                         Instant now, Effects& out) {
  PushHistory& history = ledger_.pushes_of(worker.rank);
  history.Decide(key, verdict);
  if (PushHistory::Entry* entry = history.Find(key)) entry->answered = true;
  ++worker.pushes;
  Tell(worker, key, std::move(verdict), weights_partitions, now, out);
}

void Coordinator::Tell(Worker& worker, const PushKey& key, PushVerdict verdict,
                       int32_t weights_partitions, Instant now, Effects& out) {
  if (!worker.usable()) return;
  verdict.next = NextFor(worker, now);
  if (std::exchange(worker.returned, false)) {
    // It may repeat a push that was complete, and fail at a rendezvous or a
    // pull of the old step before it has a stream for the verdict. Only its
    // session is there for certain to tell it what comes next.
    out.push_back(
        effect::Notify{.session = worker.session, .assignment = verdict.next});
  }
  out.push_back(effect::SendVerdict{.rank = worker.rank,
                                    .incarnation = worker.incarnation,
                                    .key = key,
                                    .verdict = std::move(verdict),
                                    .weights_partitions = weights_partitions});
}

bool Coordinator::CountNonfinite(const std::string& what, Effects& out) {
  ledger_.CountNonfinite();
  out.push_back(effect::Log{
      .severity = Severity::kWarning,
      .text = absl::StrCat(
          "not finite: ", what, " at step ", model_.version().value(), " (",
          ledger_.nonfinite_in_row(), " in a row, ",
          settings_.options().nonfinite_max, " end the run)")});
  return ledger_.nonfinite_in_row() >= settings_.options().nonfinite_max;
}

}  // namespace cohort
