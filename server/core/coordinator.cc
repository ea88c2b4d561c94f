#include "server/core/coordinator.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "server/core/assignments.h"
#include "server/core/lost_ranks.h"
#include "server/core/optimizer/workers_optimizer.h"
#include "server/core/run_lifecycle.h"
#include "server/core/run_state.h"
#include "server/core/settings_change.h"
#include "server/core/step/old_pushes.h"
#include "server/core/step/push_checks.h"
#include "server/core/step/push_outcome.h"
#include "server/core/step/reduce_checks.h"

namespace cohort {
namespace {

// Names what a closing says that is not finite. A loss is reported as it is,
// because a model that diverges must show; measures are left out.
void NameNonfinite(const Worker& worker, PushClosing& closing, Turn& turn) {
  const auto warn = [&](const std::string& what, absl::string_view rule) {
    turn.Warn(absl::StrCat("rank ", worker.rank.value(), ": ", what,
                           " is not finite at step ",
                           worker.work.outstanding()->version.value(), rule),
              worker.process());
  };
  if (!std::isfinite(closing.loss_sum)) warn("the loss", "");
  for (const std::string& name : TakeNonfiniteMeasures(closing)) {
    warn(absl::StrCat("measure ", name), "; it is left out of the mean");
  }
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options,
                         const RunState* restored)
    : run_(options, restored) {
  if (restored == nullptr) return;
  const bool epoch_ended = RestoreState(*restored, run_);
  run_.roster.Restore(*restored);
  if (IsOver(*restored, options)) {
    over_ = restored->ended;
    return;
  }
  // The last step may have come within an epoch.
  if (epoch_ended || run_.driver->TrainingDone()) {
    run_.pinned.EvaluateEpoch(restored->data_epoch,
                              run_.driver->TrainingDone());
  }
}

// ---- an event to its end

void Coordinator::Settle(Turn& turn) {
  bool changed = turn.changed;
  while (Advance(turn)) changed = true;
  // After everything that follows from the event: a verdict carries the next
  // assignment of its rank.
  SendAnswers(run_, turn.answers, turn);
  if (turn.end.has_value()) {
    EndRun(run_, *turn.end, turn);
  } else if ((changed || turn.changed) && run_.phase.started()) {
    EndIfDone(run_, turn);
    NotifyWaiting(run_, turn);
  }
  SendAnswers(run_, turn.answers_after_notices, turn);
  if (turn.repeat_waits) RepeatWaits(run_, turn);
}

bool Coordinator::Advance(Turn& turn) {
  if (run_.phase.ended() || turn.end.has_value()) return false;
  if (turn.fencing.has_value()) {
    const Turn::Fencing fencing = *std::exchange(turn.fencing, std::nullopt);
    Expel(run_, fencing.rank, VacancyReason::kMismatch, fencing.reason, turn);
    return true;
  }
  if (RequestPlanned(run_, turn)) return true;
  // First: a cohort of another size is not to be waited for.
  if (TryChange(turn)) return true;
  if (!run_.phase.started()) {
    if (run_.registrar.Ask(turn)) return true;
    if (!ReadyToStart(run_, turn.now) || !SafeToStart(run_, turn)) {
      return false;
    }
    StartTraining(run_, turn);
    return true;
  }
  const bool advanced = run_.driver->Advance(turn);
  if (std::exchange(turn.checkpoint, false)) {
    absl::StatusOr<RunState> state = State();
    COHORT_CHECK(state.ok(), state.status().ToString());
    turn.out.push_back(effect::WriteCheckpoint{.state = *std::move(state)});
  }
  return advanced;
}

bool Coordinator::TryChange(Turn& turn) {
  if (!run_.settings.pending().has_value() || !run_.driver->Quiet())
    return false;
  PutChangeInForce(run_, turn);
  // A round that no rank was given leaves no trace.
  run_.driver = MakeStepDriver(run_);
  return true;
}

// ---- sessions

absl::Status Coordinator::Join(SessionId session, const JoinRequest& request,
                               Instant now, Effects& out) {
  Turn turn{.now = now, .out = out};
  run_.roster.NoteBegin(now);
  COHORT_ASSIGN_OR_RETURN(
      const Roster::Joined joined,
      run_.roster.Join(
          session, request, [&] { return WaitText(run_, now); }, turn));
  Worker& worker = run_.ranks[joined.rank];
  // Its new streams have received nothing.
  run_.flow.Forget(joined.rank);
  // A process that takes a lost rank's place where no rank waited for it
  // starts beside the slowest.
  run_.driver->Welcome(
      worker,
      /*fresh=*/!joined.back &&
          (!joined.replaces || !run_.settings.waits_for_lost()),
      turn);
  if (run_.phase.ended()) {
    out.push_back(effect::Notify{
        .session = session,
        .assignment = FinishedAssignment(run_, run_.phase.end_reason())});
    return absl::OkStatus();
  }
  if (!joined.back) return absl::OkStatus();
  // Others may have waited for its return.
  turn.changed = true;
  Settle(turn);
  RepeatWait(run_, joined.rank, turn);
  return absl::OkStatus();
}

void Coordinator::Heartbeat(SessionId session, Instant now,
                            const WorkerReport& report) {
  run_.roster.Hear(session, report, now);
  const Worker* const worker = run_.ranks.BySession(session);
  if (worker != nullptr) shares_.Note(worker->rank, report.phases);
}

void Coordinator::EndWithData(SessionId session, Instant now, Effects& out) {
  const Worker* worker = run_.ranks.BySession(session);
  if (worker == nullptr || run_.phase.ended() || run_.phase.draining() ||
      !run_.model.registered() || !run_.model.model()->plan.own_data) {
    return;
  }
  Turn turn{.now = now, .out = out, .changed = true};
  BeginDrain(
      run_,
      absl::StrCat("the data of worker ", worker->rank.value(), " has ended"),
      turn);
  Settle(turn);
}

void Coordinator::Leave(SessionId session, const Departure& departure,
                        Instant now, Effects& out) {
  if (departure.kind == Departure::Kind::kDataEnded) {
    EndWithData(session, now, out);
  }
  const Worker* worker = run_.ranks.BySession(session);
  if (worker == nullptr) return;
  Turn turn{.now = now, .out = out};
  // One that was asked to leave says only that it is done.
  const std::string why = worker->leaves_because.value_or(departure.reason);
  if (departure.kind == Departure::Kind::kRefused && run_.phase.started()) {
    turn.end = {.outcome = RunOutcome::kRefused,
                .reason = absl::StrCat("worker ", worker->rank.value(),
                                       " was refused: ", why)};
  }
  Lose(run_, worker->rank, VacancyReason::kLeft, why, turn);
  Settle(turn);
}

void Coordinator::SessionBroken(SessionId session, Instant now, Effects& out) {
  Turn turn{.now = now, .out = out};
  run_.roster.Break(session, turn);
}

absl::Status Coordinator::Evict(Rank rank, const std::string& reason,
                                Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(run_.roster.CheckTaken(rank));
  Turn turn{.now = now, .out = out};
  Expel(run_, rank, VacancyReason::kAdmin, absl::StrCat("evicted: ", reason),
        turn);
  Settle(turn);
  return absl::OkStatus();
}

absl::Status Coordinator::DrainWorker(Rank rank, const std::string& reason,
                                      Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(run_.roster.CheckTaken(rank));
  Turn turn{.now = now, .out = out, .changed = true};
  AskToLeave(run_, rank, reason, turn);
  Settle(turn);
  return absl::OkStatus();
}

// ---- registration

absl::Status Coordinator::BeginRegister(const Sender& sender,
                                        const ModelLayout& layout,
                                        const RunPlan& plan, Instant now,
                                        Effects& out) {
  COHORT_RETURN_IF_ERROR(run_.roster.Check(sender, now).status());
  COHORT_RETURN_IF_ERROR(run_.registrar.Check(sender.rank, layout, plan));
  Turn turn{.now = now, .out = out, .changed = true};
  if (!TakeRegistration(run_, sender, layout, plan, turn)) {
    return absl::OkStatus();
  }
  Settle(turn);
  RepeatWait(run_, sender.rank, turn);
  return absl::OkStatus();
}

absl::Status Coordinator::RegisterProgress(const Sender& sender, Instant now) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, run_.roster.Check(sender, now));
  // Each partition is taken once.
  if (run_.registrar.asked() == sender.rank) worker->work.NoteProgress(now);
  return absl::OkStatus();
}

void Coordinator::RegisterClosed(const Sender& sender, Instant now,
                                 Effects& out) {
  if (!run_.roster.Check(sender, now).ok() || run_.phase.ended()) return;
  Turn turn{.now = now, .out = out, .changed = true, .repeat_waits = true};
  run_.registrar.NoteClosed(sender.rank);
  Settle(turn);
}

absl::StatusOr<RegisterAnswer> Coordinator::FinishRegister(
    const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
    std::vector<LayerStatistics> statistics, Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(run_.roster.Check(sender, now).status());
  // The worker learns of it on its session.
  if (run_.phase.ended()) return run_.registrar.AnswerOf(layout, plan);
  COHORT_RETURN_IF_ERROR(run_.registrar.Check(sender.rank, layout, plan));
  // The same incarnation has sent them twice.
  if (run_.model.registered()) return run_.registrar.AnswerOfModel();
  Turn turn{.now = now, .out = out, .changed = true, .repeat_waits = true};
  COHORT_ASSIGN_OR_RETURN(const CoordinatorOptions target,
                          TakeWorkersOptimizer(run_.settings.options(), plan));
  COHORT_RETURN_IF_ERROR(InstallModel(run_, sender, target, layout, plan,
                                      std::move(statistics), turn));
  AdoptWorkersOptimizer(run_, target, plan, turn);
  Settle(turn);
  return run_.registrar.AnswerOfModel();
}

// ---- one push

absl::Status Coordinator::Open(const Sender& sender, const PushKey& key,
                               const PushOpening& opening, Instant now,
                               Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          run_.roster.CheckRegistered(sender, now));
  COHORT_ASSIGN_OR_RETURN(const bool under_way, IsUnderWay(run_, *worker, key));
  Turn turn{.now = now, .out = out};
  if (!under_way) {
    // No weights answer this update of a push that is decided.
    if (opening.continues) {
      AnswerOldPush(run_, *run_.driver, *worker, key, turn);
      Settle(turn);
    }
    return absl::OkStatus();
  }
  COHORT_RETURN_IF_ERROR(run_.driver->Open(*worker, key, opening, turn));
  worker->work.NotePart(worker->incarnation, key, RankWork::kOpening, now);
  Settle(turn);
  return absl::OkStatus();
}

absl::StatusOr<Admission> Coordinator::Gradient(const Sender& sender,
                                                const PushKey& key,
                                                const GradientArrival& gradient,
                                                Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          run_.roster.CheckRegistered(sender, now));
  COHORT_RETURN_IF_ERROR(
      CheckGradient(gradient, run_.model.model()->partitions));
  COHORT_ASSIGN_OR_RETURN(const bool under_way, IsUnderWay(run_, *worker, key));
  Turn turn{.now = now, .out = out};
  if (!under_way) {
    // Its push may have been paused before it was dropped.
    run_.flow.Forget(worker->rank);
    TakeGradient(*worker, key, gradient, /*fresh=*/false, turn);
    return Admission::kTaken;
  }
  COHORT_ASSIGN_OR_RETURN(const Admission admission,
                          run_.driver->Gradient(*worker, key, gradient, turn));
  if (admission == Admission::kTaken) {
    worker->work.NotePart(worker->incarnation, key, gradient.partition, now);
  }
  Settle(turn);
  return admission;
}

bool Coordinator::AwaitsOpening(const Sender& sender,
                                const PushKey& key) const {
  if (!run_.ranks.Contains(sender.rank)) return false;
  const Worker& worker = run_.ranks[sender.rank];
  return worker.incarnation == sender.incarnation && worker.work.trains() &&
         worker.work.key() == key.Whole() &&
         !run_.driver->HasOpened(worker, key);
}

absl::Status Coordinator::Close(const Sender& sender, const PushKey& key,
                                PushClosing closing, Instant now,
                                Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          run_.roster.CheckRegistered(sender, now));
  COHORT_ASSIGN_OR_RETURN(const bool under_way, IsUnderWay(run_, *worker, key));
  Turn turn{.now = now, .out = out};
  if (under_way) {
    // A closing of an older assignment is not checked, because another policy
    // may have been in force.
    COHORT_RETURN_IF_ERROR(
        CheckClosing(closing, run_.model.batch_norms(),
                     {.global = run_.settings.global(),
                      .local_steps = run_.settings.policy().local_steps > 0}));
    NameNonfinite(*worker, closing, turn);
    COHORT_RETURN_IF_ERROR(
        run_.driver->Close(*worker, key, std::move(closing), turn));
    worker->work.NotePart(worker->incarnation, key, RankWork::kClosing, now);
  } else {
    AnswerOldPush(run_, *run_.driver, *worker, key, turn);
  }
  Settle(turn);
  return absl::OkStatus();
}

absl::Status Coordinator::MissesState(const Sender& sender, const PushKey& key,
                                      bool lost, Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          run_.roster.CheckRegistered(sender, now));
  COHORT_ASSIGN_OR_RETURN(const bool under_way, IsUnderWay(run_, *worker, key));
  if (!under_way) return absl::OkStatus();
  const PolicyOptions& policy = run_.settings.policy();
  if (policy.aggregation != AggregationKind::kSync || policy.pushes_min > 0) {
    return absl::FailedPreconditionError(
        "kept state: want --aggregation=sync without --min_pushes, where all "
        "members of a step have the same");
  }
  Turn turn{.now = now, .out = out, .changed = true};
  if (lost) {
    turn.end = {
        .outcome = RunOutcome::kWorkerLost,
        .reason = absl::StrCat(
            "no worker is left that has the kept state of step ",
            run_.model.version().value(),
            "; with --checkpoint_dir the run continues from a checkpoint")};
  } else {
    // As if the worker were lost, and its place not kept: the members begin the
    // step again, unless an earlier incarnation has completed the push.
    run_.driver->RankLost(sender.rank, /*waits=*/false,
                          absl::StrCat("worker ", sender.rank.value(),
                                       " lacks the kept state of the step"),
                          turn);
  }
  Settle(turn);
  return absl::OkStatus();
}

absl::Status Coordinator::CheckFolded(const FoldReport& report) const {
  if (!run_.flow.budget().Folds(report.gradient_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fold of partition ", report.partition, ": got ", report.gradient_bytes,
        " bytes of gradients, want at most those that are being folded"));
  }
  const PendingCommit* const commit = run_.driver->commit();
  if (!report.prepared || commit == nullptr ||
      commit->transaction() != report.transaction) {
    return absl::OkStatus();
  }
  const bool first = commit->HasBegun(report.partition) &&
                     !commit->IsPrepared(report.partition);
  if (first) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("fold of partition ", report.partition,
                   ": it is prepared already, or gradients are missing"));
}

void Coordinator::Folded(FoldReport report, Instant now, Effects& out) {
  Turn turn{.now = now, .out = out};
  run_.flow.budget().EndFold(report.gradient_bytes);
  if (run_.phase.ended()) return;
  run_.driver->Folded(std::move(report), turn);
  Settle(turn);
}

absl::Status Coordinator::Reduce(const Sender& sender,
                                 std::vector<MomentsMessage> messages,
                                 Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          run_.roster.CheckRegistered(sender, now));
  Turn turn{.now = now, .out = out};
  absl::Status status;
  for (MomentsMessage& message : messages) {
    status = ReduceOne(*worker, std::move(message), turn);
    if (!status.ok()) break;
  }
  // Only now: while one of them is still to come, the sender does not wait.
  Settle(turn);
  return status;
}

absl::Status Coordinator::ReduceOne(Worker& worker, MomentsMessage message,
                                    Turn& turn) {
  if (run_.phase.ended() || !run_.settings.MayHaveRendezvous()) {
    return RefuseReduce(run_, worker, message.key, turn);
  }
  COHORT_RETURN_IF_ERROR(
      CheckStep(message.key, worker.rank, run_.model.version()));
  return run_.driver->Reduce(worker, std::move(message), turn);
}

void Coordinator::MomentsFolded(MomentsFold done, Instant now, Effects& out) {
  if (run_.phase.ended()) return;
  Turn turn{.now = now, .out = out};
  run_.driver->MomentsFolded(std::move(done), turn);
  Settle(turn);
}

void Coordinator::StatisticsUpdated(StatisticsUpdate done, Instant now,
                                    Effects& out) {
  if (run_.phase.ended()) return;
  Turn turn{.now = now, .out = out};
  run_.driver->StatisticsUpdated(std::move(done), turn);
  Settle(turn);
}

void Coordinator::CheckpointStored(Instant now, Effects& out) {
  if (run_.phase.ended()) return;
  Turn turn{.now = now, .out = out, .changed = true};
  run_.phase.NoteStored();
  Settle(turn);
}

// ---- evaluation and precise statistics

absl::StatusOr<Assignment> Coordinator::ReportEvaluation(
    const Sender& sender, Sequence sequence, const EvaluationSums& sums,
    Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, run_.roster.Check(sender, now));
  COHORT_RETURN_IF_ERROR(Validate(sums));
  COHORT_ASSIGN_OR_RETURN(
      const bool current,
      ReportsOutstanding(*worker, AssignmentKind::kEvaluate, sequence));
  if (current) {
    COHORT_RETURN_IF_ERROR(
        run_.pinned.FinishEvaluation(worker->rank, sums, out));
    Turn turn{.now = now, .out = out, .changed = true};
    Settle(turn);
  }
  return NextForRank(run_, sender.rank, now);
}

absl::StatusOr<Assignment> Coordinator::ReportMoments(
    const Sender& sender, Sequence sequence, std::vector<CallMoments> calls,
    Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          run_.roster.CheckRegistered(sender, now));
  COHORT_RETURN_IF_ERROR(run_.pinned.CheckCollected(calls));
  COHORT_ASSIGN_OR_RETURN(
      const bool current,
      ReportsOutstanding(*worker, AssignmentKind::kCollectMoments, sequence));
  if (current) {
    Turn turn{.now = now, .out = out, .changed = true};
    run_.pinned.FinishBatch(worker->rank, std::move(calls),
                            run_.driver->TrainingDone(), turn);
    Settle(turn);
  }
  return NextForRank(run_, sender.rank, now);
}

absl::StatusOr<CollectionAnswer> Coordinator::CollectStatistics(
    const std::string& run_id, Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(CheckRunId(run_id, run_.settings.run_id()));
  Turn turn{.now = now, .out = out, .changed = true};
  COHORT_ASSIGN_OR_RETURN(
      const CollectionAnswer answer,
      run_.pinned.Collect(run_.driver->TrainingDone(), turn));
  Settle(turn);
  return answer;
}

// ---- reading

absl::StatusOr<SharedVersion> Coordinator::Read(
    std::optional<Version> version) const {
  COHORT_RETURN_IF_ERROR(run_.model.CheckRegistered());
  return version.has_value() ? run_.pinned.Read(*version)
                             : run_.model.current();
}

absl::StatusOr<RunState> Coordinator::State() const {
  COHORT_RETURN_IF_ERROR(run_.model.CheckRegistered());
  return CaptureState(run_);
}

// ---- changes

absl::StatusOr<ChangeAnswer> Coordinator::Change(const ChangeRequest& request,
                                                 Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(CheckRunId(request.run_id, run_.settings.run_id()));
  COHORT_RETURN_IF_ERROR(run_.phase.CheckNotOver());
  COHORT_ASSIGN_OR_RETURN(const CoordinatorOptions target,
                          run_.settings.TargetOf(request.values));
  COHORT_RETURN_IF_ERROR(CheckChange(run_.settings.options(), target,
                                     run_.model, run_.ranks, run_.ledger));
  COHORT_RETURN_IF_ERROR(CheckLocalSwitch(run_, target));
  const RunSettings::Outlook outlook =
      run_.settings.OutlookOn(request.values, target);
  ChangeAnswer answer{
      .policy_epoch = run_.settings.policy_epoch() + (outlook.changes ? 1 : 0),
      .version = run_.model.version(),
      .pending = outlook.at_version,
      .text = outlook.text};
  if (outlook.changes && run_.phase.started()) {
    answer.text += PauseText(target, run_.ranks.present());
  }
  // A request for what is in force withdraws a pending change.
  if (request.dry_run || !(outlook.changes || run_.settings.pending()))
    return answer;
  Turn turn{.now = now, .out = out, .changed = true};
  RequestChange(run_, target, request.note, turn);
  Settle(turn);
  if (outlook.changes) {
    // A change that acts at once does not wait for others that are pending.
    answer.awaited = run_.settings.Awaited(request.values);
    answer.policy_epoch = answer.awaited.policy_epoch;
    answer.pending = answer.policy_epoch > run_.settings.policy_epoch();
  }
  return answer;
}

// ---- time and people

void Coordinator::Tick(Instant now, Effects& out) {
  run_.roster.NoteBegin(now);
  if (run_.phase.ended()) return;
  Turn turn{.now = now, .out = out};
  if (over_.has_value()) {
    turn.end = {.outcome = RunOutcome::kFinished,
                .reason = *std::exchange(over_, std::nullopt)};
  }
  LoseOverdue(run_, turn);
  if (run_.phase.started()) run_.driver->Tick(turn);
  shares_.Propose(run_, turn);
  Settle(turn);
  if (!run_.phase.started() || run_.phase.ended()) return;
  // Only now, because work that was given out above counts as progress.
  Turn deadlines{.now = now, .out = out};
  LoseStalled(run_, deadlines);
  GiveUpAbandoned(run_, deadlines);
  Settle(deadlines);
}

void Coordinator::Drain(const std::string& reason, Instant now, Effects& out) {
  if (run_.phase.ended() || run_.phase.draining()) return;
  Turn turn{.now = now, .out = out, .changed = true};
  BeginDrain(run_, reason, turn);
  Settle(turn);
}

}  // namespace cohort
