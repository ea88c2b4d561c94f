#include "server/core/coordinator.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "server/core/membership/lost_ranks.h"
#include "server/core/optimizer/workers_optimizer.h"
#include "server/core/run_lifecycle.h"
#include "server/core/run_state.h"
#include "server/core/step/old_pushes.h"
#include "server/core/step/push_checks.h"
#include "server/core/step/push_outcome.h"
#include "server/core/step/reduce_checks.h"

namespace cohort {
namespace {

// Tells the shard that has the gradient, before anything else that `out` has
// from position `at` on. It is held if the driver has handed it over.
void NoteTaken(effect::GradientTaken taken, size_t at, Effects& out) {
  for (size_t i = at; i < out.size(); ++i) {
    const auto* hold = std::get_if<effect::HoldGradient>(&out[i]);
    if (hold != nullptr && hold->gradient.ticket == taken.ticket) {
      taken.held = true;
    }
  }
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(at), taken);
}

// Names what a closing says that is not finite. A loss is reported as it is,
// because a model that diverges must show; measures are left out.
void NameNonfinite(const Worker& worker, PushClosing& closing, Effects& out) {
  const auto warn = [&](const std::string& what, absl::string_view rule) {
    out.push_back(effect::Log{
        .severity = Severity::kWarning,
        .worker = WorkerProcess{.rank = worker.rank,
                                .incarnation = worker.incarnation},
        .text = absl::StrCat("rank ", worker.rank.value(), ": ", what,
                             " is not finite at step ",
                             worker.outstanding->version.value(), rule)});
  };
  if (!std::isfinite(closing.loss_sum)) warn("the loss", "");
  for (const std::string& name : TakeNonfiniteMeasures(closing)) {
    warn(absl::StrCat("measure ", name), "; it is left out of the mean");
  }
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options,
                         const RunState* restored)
    : settings_(options, restored),
      ranks_(options.workers),
      ledger_(options.workers),
      pinned_(settings_, ledger_, ranks_, model_),
      flow_(options.inflight_bytes_max, ranks_),
      roster_(settings_, model_, ledger_, ranks_),
      registrar_(settings_, model_, ranks_),
      driver_(MakeStepDriver(parts())) {
  if (restored == nullptr) return;
  const bool epoch_ended = RestoreState(*restored, settings_, parts());
  roster_.Restore(*restored);
  if (IsOver(*restored, options)) {
    over_ = restored->ended;
    return;
  }
  // The last step may have come within an epoch.
  if (epoch_ended || driver_->TrainingDone()) {
    pinned_.EvaluateEpoch(restored->data_epoch, driver_->TrainingDone());
  }
}

// ---- an event to its end

void Coordinator::Settle(Turn& turn) {
  bool changed = turn.changed;
  while (Advance(turn)) changed = true;
  SendAnswers(run(), /*session_first=*/false, turn);
  if (turn.end.has_value()) {
    EndRun(run(), *turn.end, turn);
  } else if ((changed || turn.changed) && ledger_.started()) {
    EndIfDone(run(), turn);
    NotifyWaiting(run(), turn);
  }
  SendAnswers(run(), /*session_first=*/true, turn);
  if (turn.repeat_waits) RepeatWaits(run(), turn);
}

bool Coordinator::Advance(Turn& turn) {
  if (ledger_.ended() || turn.end.has_value()) return false;
  if (turn.fencing.has_value()) {
    Fence(run(), *std::exchange(turn.fencing, std::nullopt), turn);
    return true;
  }
  // First: a cohort of another size is not to be waited for.
  if (TryChange(turn)) return true;
  if (!ledger_.started()) {
    if (registrar_.Ask(turn)) return true;
    if (!ReadyToStart(run(), turn.now) || !SafeToStart(run(), turn)) {
      return false;
    }
    StartTraining(run(), turn);
    return true;
  }
  const bool advanced = driver_->Advance(turn);
  if (std::exchange(turn.checkpoint, false)) {
    absl::StatusOr<RunState> state = State();
    COHORT_CHECK(state.ok(), state.status().ToString());
    turn.out.push_back(effect::WriteCheckpoint{.state = *std::move(state)});
  }
  return advanced;
}

bool Coordinator::TryChange(Turn& turn) {
  if (!settings_.pending().has_value() || !driver_->Quiet()) return false;
  PutChangeInForce({settings_, roster_, registrar_, parts()}, turn);
  // A round that nobody was given leaves no trace.
  driver_ = MakeStepDriver(parts());
  return true;
}

// ---- sessions

absl::Status Coordinator::Join(SessionId session, const JoinRequest& request,
                               Instant now, Effects& out) {
  Turn turn{.now = now, .out = out};
  roster_.NoteBegin(now);
  COHORT_ASSIGN_OR_RETURN(
      const Roster::Joined joined,
      roster_.Join(
          session, request, [&] { return WaitText(view(), now); }, turn));
  Worker& worker = ranks_[joined.rank];
  // Its new streams begin anew.
  flow_.Forget(joined.rank);
  // A process that takes a lost rank's place where nobody waited for it
  // starts beside the slowest.
  driver_->Welcome(worker,
                   /*anew=*/!joined.back &&
                       (!joined.replaces || !settings_.waits_for_lost()),
                   turn);
  if (ledger_.ended()) {
    out.push_back(effect::Notify{
        .session = session,
        .assignment = FinishedAssignment(parts(), ledger_.end_reason())});
    return absl::OkStatus();
  }
  if (!joined.back) return absl::OkStatus();
  // Others may have waited for its return.
  turn.changed = true;
  Settle(turn);
  RepeatWait(run(), joined.rank, turn);
  return absl::OkStatus();
}

void Coordinator::Heartbeat(SessionId session, Instant now,
                            const WorkerReport& report) {
  roster_.Hear(session, report, now);
}

void Coordinator::DataEnded(SessionId session, Instant now, Effects& out) {
  const Worker* worker = ranks_.BySession(session);
  if (worker == nullptr || ledger_.ended() || ledger_.draining() ||
      !model_.registered() || !model_.model()->plan.own_data) {
    return;
  }
  Turn turn{.now = now, .out = out, .changed = true};
  BeginDrain(
      run(),
      absl::StrCat("the data of worker ", worker->rank.value(), " has ended"),
      turn);
  Settle(turn);
}

void Coordinator::Leave(SessionId session, const std::string& reason,
                        Instant now, Effects& out) {
  const Worker* worker = ranks_.BySession(session);
  if (worker == nullptr) return;
  Turn turn{.now = now, .out = out};
  // One that was told to leave says only that it is done.
  const std::string why = worker->leaves_because.value_or(reason);
  Lose(run(), worker->rank, VacancyReason::kLeft, why, turn);
  Settle(turn);
}

void Coordinator::SessionBroken(SessionId session, Instant now, Effects& out) {
  Turn turn{.now = now, .out = out};
  roster_.Break(session, turn);
}

absl::Status Coordinator::Evict(Rank rank, const std::string& reason,
                                Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(roster_.CheckHeld(rank));
  Turn turn{.now = now, .out = out};
  const std::string why = absl::StrCat("evicted: ", reason);
  EndSession(run(), rank, why, turn);
  Lose(run(), rank, VacancyReason::kAdmin, why, turn);
  Settle(turn);
  return absl::OkStatus();
}

absl::Status Coordinator::DrainWorker(Rank rank, const std::string& reason,
                                      Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(roster_.CheckHeld(rank));
  Turn turn{.now = now, .out = out, .changed = true};
  AskToLeave(run(), rank, reason, turn);
  Settle(turn);
  return absl::OkStatus();
}

// ---- registration

absl::Status Coordinator::BeginRegister(const Sender& sender,
                                        const ModelLayout& layout,
                                        const RunPlan& plan, Instant now,
                                        Effects& out) {
  COHORT_RETURN_IF_ERROR(roster_.Check(sender, now).status());
  COHORT_RETURN_IF_ERROR(registrar_.Check(sender.rank, layout, plan));
  Turn turn{.now = now, .out = out, .changed = true};
  if (!TakeRegistration(run(), sender, layout, plan, turn)) {
    return absl::OkStatus();
  }
  Settle(turn);
  RepeatWait(run(), sender.rank, turn);
  return absl::OkStatus();
}

absl::StatusOr<RegisterAnswer> Coordinator::FinishRegister(
    const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
    std::vector<SharedFloats> values, std::vector<LayerStatistics> statistics,
    Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(roster_.Check(sender, now).status());
  // The worker is told so on its session.
  if (ledger_.ended()) return registrar_.AnswerOf(layout, plan);
  if (model_.registered()) {
    // The same life has sent them twice.
    COHORT_RETURN_IF_ERROR(registrar_.Check(sender.rank, layout, plan));
    return registrar_.AnswerOfModel();
  }
  Turn turn{.now = now, .out = out, .changed = true, .repeat_waits = true};
  COHORT_RETURN_IF_ERROR(registrar_.Check(sender.rank, layout, plan));
  COHORT_ASSIGN_OR_RETURN(const CoordinatorOptions target,
                          TakeWorkersOptimizer(settings_.options(), plan));
  COHORT_RETURN_IF_ERROR(InstallModel(run(), sender, target, layout, plan,
                                      std::move(values), std::move(statistics),
                                      turn));
  AdoptWorkersOptimizer({settings_, roster_, registrar_, parts()}, target, plan,
                        turn);
  Settle(turn);
  return registrar_.AnswerOfModel();
}

// ---- one push

absl::Status Coordinator::Open(const Sender& sender, const PushKey& key,
                               const PushOpening& opening, Instant now,
                               Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          roster_.CheckRegistered(sender, now));
  COHORT_ASSIGN_OR_RETURN(const bool under_way,
                          IsUnderWay(ledger_, *worker, key));
  if (!under_way) return absl::OkStatus();
  Turn turn{.now = now, .out = out};
  COHORT_RETURN_IF_ERROR(driver_->Open(*worker, opening, turn));
  Settle(turn);
  return absl::OkStatus();
}

absl::StatusOr<Admission> Coordinator::Gradient(const Sender& sender,
                                                const PushKey& key,
                                                GradientMessage& message,
                                                Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          roster_.CheckRegistered(sender, now));
  COHORT_RETURN_IF_ERROR(CheckGradient(message, model_.model()->partitions));
  COHORT_ASSIGN_OR_RETURN(const bool under_way,
                          IsUnderWay(ledger_, *worker, key));
  if (!under_way) {
    // Its push may have been paused before it was dropped.
    flow_.Forget(worker->rank, FlowControl::SourceOf(message));
    if (message.ticket != 0) {
      NoteTaken({.rank = sender.rank,
                 .incarnation = sender.incarnation,
                 .push = {.rank = sender.rank, .key = key},
                 .partition = message.partition,
                 .ticket = message.ticket},
                out.size(), out);
    }
    return Admission::kTaken;
  }
  const size_t before = out.size();
  const int32_t partition = message.partition;
  Turn turn{.now = now, .out = out};
  COHORT_ASSIGN_OR_RETURN(const Admission admission,
                          driver_->Gradient(*worker, message, turn));
  if (message.ticket != 0 && admission == Admission::kTaken) {
    // First: weights for this rank may follow.
    NoteTaken({.rank = sender.rank,
               .incarnation = sender.incarnation,
               .push = {.rank = sender.rank, .key = key},
               .partition = partition,
               .ticket = message.ticket},
              before, out);
  }
  Settle(turn);
  return admission;
}

bool Coordinator::AwaitsOpening(const Sender& sender,
                                const PushKey& key) const {
  if (!ranks_.Contains(sender.rank)) return false;
  const Worker& worker = ranks_[sender.rank];
  return worker.incarnation == sender.incarnation && worker.trains() &&
         KeyOf(*worker.outstanding) == key && !driver_->HasOpened(worker);
}

absl::Status Coordinator::Close(const Sender& sender, const PushKey& key,
                                PushClosing closing, Instant now,
                                Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          roster_.CheckRegistered(sender, now));
  COHORT_ASSIGN_OR_RETURN(const bool under_way,
                          IsUnderWay(ledger_, *worker, key));
  Turn turn{.now = now, .out = out};
  if (under_way) {
    // A closing of an older assignment is not checked, because another policy
    // may have been in force.
    COHORT_RETURN_IF_ERROR(
        CheckClosing(closing, model_.batch_norms(), settings_.global()));
    NameNonfinite(*worker, closing, out);
    COHORT_RETURN_IF_ERROR(driver_->Close(*worker, std::move(closing), turn));
  } else {
    AnswerOldPush(parts(), *driver_, *worker, key, turn);
  }
  Settle(turn);
  return absl::OkStatus();
}

absl::Status Coordinator::CheckFolded(const FoldReport& report) const {
  if (!flow_.budget().Folds(report.gradient_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fold of partition ", report.partition, ": got ", report.gradient_bytes,
        " bytes of gradients, want at most those that are being folded"));
  }
  const PendingCommit* const commit = driver_->commit();
  if (!report.prepared.has_value() || commit == nullptr ||
      commit->transaction() != report.transaction) {
    return absl::OkStatus();
  }
  const bool first = commit->HasBegun(report.partition) &&
                     !commit->result(report.partition).has_value();
  if (first) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("fold of partition ", report.partition,
                   ": it is prepared already, or gradients are missing"));
}

void Coordinator::Folded(FoldReport report, Instant now, Effects& out) {
  Turn turn{.now = now, .out = out};
  flow_.budget().EndFold(report.gradient_bytes);
  if (ledger_.ended()) return;
  driver_->Folded(std::move(report), turn);
  Settle(turn);
}

absl::Status Coordinator::Reduce(const Sender& sender, const ReduceKey& key,
                                 Moments moments, Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          roster_.CheckRegistered(sender, now));
  Turn turn{.now = now, .out = out};
  if (ledger_.ended() || !settings_.MayHaveRendezvous()) {
    return RefuseReduce(parts(), *worker, key, turn);
  }
  COHORT_RETURN_IF_ERROR(CheckStep(key, worker->rank, model_.version()));
  COHORT_RETURN_IF_ERROR(
      driver_->Reduce(*worker, key, std::move(moments), turn));
  Settle(turn);
  return absl::OkStatus();
}

void Coordinator::MomentsFolded(MomentsFold done, Instant now, Effects& out) {
  if (ledger_.ended()) return;
  Turn turn{.now = now, .out = out};
  driver_->MomentsFolded(std::move(done), turn);
  Settle(turn);
}

void Coordinator::StatisticsUpdated(StatisticsUpdate done, Instant now,
                                    Effects& out) {
  if (ledger_.ended()) return;
  Turn turn{.now = now, .out = out};
  driver_->StatisticsUpdated(std::move(done), turn);
  Settle(turn);
}

void Coordinator::CheckpointStored(Instant now, Effects& out) {
  if (ledger_.ended()) return;
  Turn turn{.now = now, .out = out, .changed = true};
  ledger_.NoteStored();
  Settle(turn);
}

// ---- evaluation and precise statistics

absl::StatusOr<Assignment> Coordinator::ReportEvaluation(
    const Sender& sender, Sequence sequence, const EvaluationSums& sums,
    Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, roster_.Check(sender, now));
  COHORT_RETURN_IF_ERROR(Validate(sums));
  COHORT_ASSIGN_OR_RETURN(
      const bool current,
      ReportsOutstanding(*worker, AssignmentKind::kEvaluate, sequence));
  if (current) {
    COHORT_RETURN_IF_ERROR(pinned_.FinishEvaluation(worker->rank, sums, out));
    worker->outstanding.reset();
    Turn turn{.now = now, .out = out, .changed = true};
    Settle(turn);
  }
  return NextForRank(run(), sender.rank, now);
}

absl::StatusOr<Assignment> Coordinator::ReportMoments(
    const Sender& sender, Sequence sequence, std::vector<CallMoments> calls,
    Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          roster_.CheckRegistered(sender, now));
  COHORT_RETURN_IF_ERROR(pinned_.CheckCollected(calls));
  COHORT_ASSIGN_OR_RETURN(
      const bool current,
      ReportsOutstanding(*worker, AssignmentKind::kCollectMoments, sequence));
  if (current) {
    worker->outstanding.reset();
    pinned_.FinishBatch(worker->rank, std::move(calls), driver_->TrainingDone(),
                        out);
    Turn turn{.now = now, .out = out, .changed = true};
    Settle(turn);
  }
  return NextForRank(run(), sender.rank, now);
}

absl::StatusOr<CollectionAnswer> Coordinator::CollectStatistics(
    const std::string& run_id, Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(CheckRunId(run_id, settings_.run_id()));
  COHORT_ASSIGN_OR_RETURN(const CollectionAnswer answer,
                          pinned_.Collect(driver_->TrainingDone(), out));
  Turn turn{.now = now, .out = out, .changed = true};
  Settle(turn);
  return answer;
}

// ---- reading

absl::StatusOr<SharedSnapshot> Coordinator::Read(
    std::optional<Version> version) const {
  COHORT_RETURN_IF_ERROR(model_.CheckRegistered());
  return version.has_value() ? pinned_.Read(*version) : model_.current();
}

absl::StatusOr<RunState> Coordinator::State() const {
  COHORT_RETURN_IF_ERROR(model_.CheckRegistered());
  return CaptureState(view());
}

// ---- changes

absl::StatusOr<ChangeAnswer> Coordinator::Change(const ChangeRequest& request,
                                                 Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(CheckRunId(request.run_id, settings_.run_id()));
  COHORT_RETURN_IF_ERROR(ledger_.CheckNotOver());
  COHORT_ASSIGN_OR_RETURN(const CoordinatorOptions target,
                          settings_.TargetOf(request.values));
  COHORT_RETURN_IF_ERROR(
      CheckChange(settings_.options(), target, model_, ranks_));
  const RunSettings::Outlook outlook =
      settings_.OutlookOn(request.values, target);
  ChangeAnswer answer = AnswerTo(outlook, settings_, model_.version());
  if (outlook.changes && ledger_.started()) {
    answer.text += PauseText(target, ranks_.present());
  }
  // A request for what is in force withdraws a pending change.
  if (request.dry_run || !(outlook.changes || settings_.pending()))
    return answer;
  Turn turn{.now = now, .out = out, .changed = true};
  RequestChange(run(), settings_, target, request.note, turn);
  Settle(turn);
  if (outlook.changes) {
    // A change that acts at once does not wait for others that are pending.
    answer.pending = settings_.IsPending(request.values);
    answer.policy_epoch = settings_.policy_epoch() + (answer.pending ? 1 : 0);
  }
  return answer;
}

// ---- time and people

void Coordinator::Tick(Instant now, Effects& out) {
  roster_.NoteBegin(now);
  if (ledger_.ended()) return;
  Turn turn{.now = now, .out = out};
  if (over_.has_value()) {
    turn.end = {.outcome = RunOutcome::kFinished,
                .reason = *std::exchange(over_, std::nullopt)};
  }
  LoseOverdue(run(), turn);
  if (ledger_.started()) driver_->Tick(turn);
  Settle(turn);
  if (!ledger_.started() || ledger_.ended()) return;
  Turn deadlines{.now = now, .out = out};
  LoseStalled(run(), deadlines);
  GiveUpAbandoned(run(), deadlines);
  Settle(deadlines);
}

void Coordinator::Drain(const std::string& reason, Instant now, Effects& out) {
  if (ledger_.ended() || ledger_.draining()) return;
  Turn turn{.now = now, .out = out, .changed = true};
  BeginDrain(run(), reason, turn);
  Settle(turn);
}

}  // namespace cohort
