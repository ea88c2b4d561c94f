#include "server/core/coordinator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/initial_values.h"

namespace cohort {
Coordinator::Coordinator(const CoordinatorOptions& options,
                         const RunState* restored)
    : settings_(options, restored),
      ranks_(options.workers),
      ledger_(options.workers),
      pinned_(settings_, ledger_, ranks_, model_),
      next_incarnation_(options.first_incarnation),
      budget_(options.inflight_bytes_max) {
  for (VacancyReason reason : kVacancyReasons) ledger_.vacancies[reason] = 0;
  if (restored != nullptr) Restore(*restored);
}

void Coordinator::Restore(const RunState& restored) {
  resumed_ = true;
  model_.Restore(restored.model, restored.snapshot);
  model_.AdoptOptimizer(settings_.options(), settings_.policy());
  const std::string adopted = model_.AdoptStatistics(settings_.policy());
  ledger_.AddSamples(restored.samples);
  if (settings_.history().size() > restored.policy_history.size()) {
    settings_.AppendToHistory(adopted);
  }
  next_incarnation_ = std::max(next_incarnation_, restored.next_incarnation);
  ledger_.cursor() = DataCursor(model_.model()->plan.train_samples,
                                settings_.options().epochs);
  ledger_.cursor().Restore(restored.data_epoch, restored.cursor);
  std::vector<DataCursor::Piece> open;
  for (const RunState::Range& r : restored.reissue) {
    open.push_back({.epoch = r.epoch, .range = r.range});
  }
  ledger_.cursor().RestoreOpen(open);
  lost_before_ = {restored.lost.begin(), restored.lost.end()};
  never_registered_before_ = {restored.never_registered.begin(),
                              restored.never_registered.end()};
  ranks_.RestoreSequences(restored.next_sequences);
  for (Worker& worker : ranks_.all()) {
    const auto at = static_cast<size_t>(worker.rank.value());
    ledger_.pushes_of(worker.rank).ForgetBelow(worker.next_sequence);
    if (at >= restored.batch_sizes.size()) continue;
    worker.batch_size = restored.batch_sizes[at];
    // It is missed from the beginning.
    worker.ever_registered = !never_registered_before_.contains(worker.rank);
  }
  // The evaluation of an epoch that ended with this version was lost with
  // the old process.
  if (restored.cursor == 0 && restored.data_epoch > 0 && open.empty()) {
    pinned_.EvaluateEpoch(restored.data_epoch, TrainingDone());
  }
  HoldReadVersions();
}

absl::StatusOr<Worker*> Coordinator::Check(const Sender& sender, Instant now) {
  if (sender.run_id != settings_.options().run_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "got run ", sender.run_id, ", want ", settings_.options().run_id,
        ": this server holds another run"));
  }
  if (!ranks_.Contains(sender.rank)) {
    // It may not have read yet that it is to leave.
    if (settings_.HadRank(sender.rank)) {
      return absl::AbortedError(SurplusText(sender.rank));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "got rank ", sender.rank.value(), ", want 0 to ", ranks_.size() - 1));
  }
  Worker& worker = ranks_[sender.rank];
  if (worker.incarnation != sender.incarnation ||
      worker.state == Worker::State::kVacant) {
    return absl::AbortedError(
        absl::StrCat("rank ", sender.rank.value(), ": incarnation ",
                     sender.incarnation.value(), " is over; join again"));
  }
  worker.last_heard = now;
  worker.last_progress = now;
  return &worker;
}

absl::Status Coordinator::RequireRegistered(const Worker& worker) const {
  if (model_.registered() && worker.registered) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", worker.rank.value(), " has not registered its model"));
}

absl::Status Coordinator::BeginRegister(const Sender& sender,
                                        const ModelLayout& layout,
                                        const RunPlan& plan, Instant now,
                                        Effects& out) {
  COHORT_RETURN_IF_ERROR(Check(sender, now).status());
  COHORT_RETURN_IF_ERROR(Validate(layout));
  COHORT_RETURN_IF_ERROR(CheckRunPlan(plan));
  if (!model_.registered()) {
    COHORT_RETURN_IF_ERROR(
        MaskFor(settings_.options().optimizer, layout,
                MakePartitions(layout, settings_.options().partition_bytes))
            .status());
    COHORT_RETURN_IF_ERROR(CheckInflight(settings_.options(), layout));
    const auto* ruling = registrations_.Ruling();
    // Until somebody is asked, a lower rank may still come.
    if (registrations_.asked().has_value() && ruling->first != sender.rank) {
      COHORT_RETURN_IF_ERROR(CheckSameModel(
          layout, plan, ruling->second.layout, ruling->second.plan,
          absl::StrCat("that of worker ", ruling->first.value(),
                       ", which registers it")));
    }
    AwaitModel(sender, layout, plan, now, out);
    return absl::OkStatus();
  }
  COHORT_RETURN_IF_ERROR(CheckSameModel(layout, plan, model_.layout(),
                                        model_.model()->plan, "the run's"));
  out.push_back(effect::RegisterAnswered{.rank = sender.rank,
                                         .incarnation = sender.incarnation,
                                         .answer = AnswerOfModel()});
  Admit(sender.rank);
  Advance(now, out);
  RepeatWait(sender.rank, now, out);
  return absl::OkStatus();
}

absl::StatusOr<RegisterAnswer> Coordinator::FinishRegister(
    const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
    std::vector<SharedFloats> values, std::vector<LayerStatistics> statistics,
    Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(Check(sender, now).status());
  // The worker is told so on its session.
  if (ledger_.ended()) return AnswerOf({.layout = layout, .plan = plan});
  if (model_.registered()) {
    // The same life has sent them twice.
    COHORT_RETURN_IF_ERROR(CheckSameModel(layout, plan, model_.layout(),
                                          model_.model()->plan, "the run's"));
    return AnswerOfModel();
  }
  if (registrations_.asked() != sender.rank) {
    return absl::FailedPreconditionError(
        absl::StrCat("register: rank ", sender.rank.value(),
                     " sent values that it was not asked for"));
  }
  COHORT_RETURN_IF_ERROR(Validate(layout));
  COHORT_RETURN_IF_ERROR(CheckRunPlan(plan));
  COHORT_RETURN_IF_ERROR(CheckInitialStatistics(layout, statistics));
  COHORT_RETURN_IF_ERROR(
      model_.Install(layout, plan, std::move(values), std::move(statistics),
                     settings_.options(), settings_.policy()));
  ledger_.cursor() = DataCursor(plan.train_samples, settings_.options().epochs);
  HoldReadVersions();
  out.push_back(effect::Log{
      .worker =
          WorkerLife{.rank = sender.rank, .incarnation = sender.incarnation},
      .text = absl::StrCat("rank ", sender.rank.value(),
                           " registered the model: ", layout.parameters.size(),
                           " parameters, ", layout.batch_norms.size(),
                           " batch-norm layers, data set ", plan.dataset)});
  AdmitRegistrants(sender.rank, now, out);
  return AnswerOfModel();
}

bool Coordinator::ReadyToStart(Instant now) const {
  if (!model_.registered() || ranks_.Usable().empty()) return false;
  return AwaitedToStart().empty() || StartLeft(now) <= absl::ZeroDuration();
}

void Coordinator::Start(Instant now, Effects& out) {
  ledger_.Start();
  const auto here = static_cast<int32_t>(ranks_.Usable().size());
  const std::string who =
      here == ranks_.size()
          ? absl::StrCat("all ", here, " workers are registered")
          : absl::StrCat(here, " of ", ranks_.size(),
                         " workers are registered, and the run goes on "
                         "without the others");
  for (Worker& worker : ranks_.all()) {
    // As if it had been lost just now, where it is waited for.
    if (!worker.usable()) worker.missed_since = now;
  }
  out.push_back(
      effect::Log{.text = absl::StrCat(who, "; training starts at version ",
                                       model_.version().value(), ": ",
                                       PolicyText(settings_.policy()))});
}

void Coordinator::Advance(Instant now, Effects& out) {
  if (ledger_.ended()) return;
  // First: a cohort of another size is not to be waited for.
  TryChange(now, out);
  if (!ledger_.started()) {
    AskForValues(now, out);
    if (!ReadyToStart(now)) return;
    Start(now, out);
  }
  if (settings_.sync() && !round_.has_value()) StartStep();
  if (!settings_.sync()) ApplyNext(now, out);
  if (ledger_.ended()) return;
  if (TrainingDone() && pinned_.Conclude(out) && pinned_.evaluated()) {
    End(ledger_.draining() ? RunOutcome::kDrained : RunOutcome::kFinished,
        ledger_.draining() ? ledger_.drain_reason()
                           : absl::StrCat("all ", settings_.options().epochs,
                                          " epochs are done"),
        out);
    return;
  }
  NotifyWaiting(now, out);
}

bool Coordinator::TrainingDone() const {
  const bool no_more = ledger_.draining() || ledger_.cursor().exhausted();
  if (settings_.sync()) return no_more && !round_.has_value();
  return no_more && pieces_.empty() && arrivals_.empty() &&
         !applying_.has_value();
}

void Coordinator::NotifyWaiting(Instant now, Effects& out) {
  for (Worker& worker : ranks_.all()) {
    if (!worker.waiting || !worker.usable()) continue;
    Assignment next = NextFor(worker, now);
    if (next.kind == AssignmentKind::kWait) continue;
    out.push_back(effect::Notify{.session = worker.session,
                                 .assignment = std::move(next)});
  }
}

Assignment Coordinator::NextForRank(Rank rank, Instant now) {
  if (!ranks_.Contains(rank)) return FinishedAssignment(SizeText());
  return NextFor(ranks_[rank], now);
}

Assignment Coordinator::NextFor(Worker& worker, Instant now) {
  worker.waiting = false;
  worker.last_progress = now;
  if (ledger_.ended()) return FinishedAssignment(ledger_.end_reason());
  if (worker.leaves_because.has_value() && !worker.outstanding.has_value()) {
    Assignment leave = FinishedAssignment(*worker.leaves_because);
    leave.unfinished = true;
    return leave;
  }
  if (ledger_.started() && worker.registered) {
    if (worker.outstanding.has_value()) return *worker.outstanding;
    std::optional<Assignment> next = NextShard(worker);
    if (!next.has_value()) next = NextTraining(worker);
    if (next.has_value()) {
      worker.outstanding = next;
      return *next;
    }
  }
  worker.waiting = true;
  return WaitAssignment(worker, now);
}

std::optional<Assignment> Coordinator::NextTraining(Worker& worker) {
  Assignment next{.kind = AssignmentKind::kTrain,
                  .sequence = worker.next_sequence,
                  .version = model_.version(),
                  .policy_epoch = settings_.policy_epoch(),
                  .global_normalization = settings_.global()};
  if (settings_.sync()) {
    if (!round_.has_value() || !IsMember(worker.rank)) return std::nullopt;
    if (!round_->issued.insert(worker.rank).second) return std::nullopt;
    next.attempt = round_->attempt;
    next.members = round_->members;
    next.data_epoch = round_->cut.epoch;
    next.range = round_->ranges.at(worker.rank);
  } else {
    if (ledger_.draining() || settings_.pending().has_value() ||
        !Behind(worker.rank).empty()) {
      return std::nullopt;
    }
    const std::optional<DataCursor::Piece> piece =
        ledger_.cursor().Next(worker.batch_size);
    if (!piece.has_value()) return std::nullopt;
    pieces_[worker.rank] = *piece;
    next.data_epoch = piece->epoch;
    next.range = piece->range;
  }
  worker.next_sequence = worker.next_sequence.Next();
  ledger_.pushes_of(worker.rank)
      .Give({.sequence = next.sequence, .attempt = next.attempt});
  return next;
}

Assignment Coordinator::WaitAssignment(const Worker& worker,
                                       Instant now) const {
  return {.kind = AssignmentKind::kWait,
          .sequence = worker.next_sequence,
          .version = model_.version(),
          .policy_epoch = settings_.policy_epoch(),
          .reason = WaitText(now),
          .wait = WaitLeft(WaitedFor(), now)};
}

Assignment Coordinator::FinishedAssignment(const std::string& reason) const {
  return {.kind = AssignmentKind::kFinished,
          .version = model_.version(),
          .policy_epoch = settings_.policy_epoch(),
          .reason = reason,
          .unfinished = ledger_.broke_off()};
}

void Coordinator::End(RunOutcome outcome, const std::string& reason,
                      Effects& out) {
  if (ledger_.ended()) return;
  ledger_.End(outcome, reason);
  ResumeAll(out);
  if (round_.has_value()) {
    for (const auto& pending : round_->rendezvous.AllPending()) {
      out.push_back(effect::ReduceAborted{
          .rank = pending.rank,
          .incarnation = ranks_[pending.rank].incarnation,
          .key = pending.key,
          .reason = absl::StrCat("the run is over: ", reason)});
    }
  }
  AnswerAtTheEnd(out);
  for (const Worker& worker : ranks_.all()) {
    DismissRegistrant(worker.rank, out);
    if (worker.state != Worker::State::kLive) continue;
    out.push_back(
        effect::Notify{.session = worker.session,
                       .assignment = FinishedAssignment(ledger_.end_reason())});
  }
  out.push_back(effect::Log{.severity = outcome == RunOutcome::kFinished ||
                                                outcome == RunOutcome::kDrained
                                            ? Severity::kInfo
                                            : Severity::kError,
                            .text = absl::StrCat("the run is over: ", reason)});
  out.push_back(effect::RunEnded{.outcome = outcome,
                                 .reason = reason,
                                 .model = model_.model(),
                                 .snapshot = model_.current()});
}

void Coordinator::Drain(const std::string& reason, Instant now, Effects& out) {
  if (ledger_.ended() || ledger_.draining()) return;
  ledger_.Drain(reason);
  if (!ledger_.started()) {
    End(RunOutcome::kDrained, reason, out);
    return;
  }
  WithdrawFromLost("the run is drained", now, out);
  Advance(now, out);
}

absl::StatusOr<SharedSnapshot> Coordinator::Read(
    std::optional<Version> version) const {
  if (!model_.registered()) {
    return absl::FailedPreconditionError("no model is registered yet");
  }
  if (!version.has_value()) return model_.current();
  // First, for the same version may have got new statistics since.
  SharedSnapshot pinned = pinned_.Pinned(*version);
  if (pinned != nullptr) return pinned;
  if (*version == model_.version()) return model_.current();
  return absl::OutOfRangeError(absl::StrCat("got version ", version->value(),
                                            ", want ", model_.version().value(),
                                            ", the newest, or a pinned one"));
}

absl::StatusOr<RunState> Coordinator::State() const {
  if (!model_.registered()) {
    return absl::FailedPreconditionError("no model is registered yet");
  }
  RunState state{.model = model_.model(),
                 .snapshot = model_.current(),
                 .samples = ledger_.samples(),
                 .data_epoch = ledger_.cursor().epoch(),
                 .cursor = ledger_.cursor().position(),
                 .policy_epoch = settings_.policy_epoch(),
                 .settings = SettingsOf(settings_.options()),
                 .policy_history = settings_.history(),
                 .next_sequences = ranks_.next_sequences(),
                 .next_incarnation = next_incarnation_};
  for (const Worker& worker : ranks_.all()) {
    state.batch_sizes.push_back(worker.batch_size);
    if (!worker.ever_registered) {
      state.never_registered.push_back(worker.rank);
    } else if (worker.state == Worker::State::kVacant) {
      state.lost.push_back(worker.rank);
    }
  }
  const auto reissue = [&state](const DataCursor::Piece& piece) {
    state.reissue.push_back({.epoch = piece.epoch, .range = piece.range});
  };
  for (const DataCursor::Piece& piece : ledger_.cursor().reissue())
    reissue(piece);
  for (const auto& [rank, piece] : pieces_) reissue(piece);
  for (const Arrival& arrival : arrivals_) reissue(arrival.piece);
  if (applying_.has_value()) reissue(applying_->piece);
  return state;
}

int64_t Coordinator::samples_total() const {
  return !model_.registered()
             ? 0
             : settings_.options().epochs * model_.model()->plan.train_samples;
}

int64_t Coordinator::samples_reference() const {
  int64_t samples = 0;
  for (const Worker& worker : ranks_.all()) samples += worker.batch_size;
  return std::max<int64_t>(samples, 1);
}

}  // namespace cohort
