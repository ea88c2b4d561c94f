// Sessions, lives and deadlines of the coordinator.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"
#include "server/core/limits.h"

namespace cohort {

absl::Status Coordinator::Join(SessionId session, const JoinRequest& request,
                               Instant now, Effects& out) {
  NoteBegin(now);
  if (request.batch_size < 1 || request.batch_size > limits::kBatchSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("join: got batch size ", request.batch_size,
                     ", want 1 to ", limits::kBatchSizeMax));
  }
  if (!request.run_id.empty() && request.run_id != settings_.options().run_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "join: got run ", request.run_id, ", want ", settings_.options().run_id,
        ": this server holds another run"));
  }
  if (request.incarnation != Incarnation()) {
    return Rejoin(session, request, now, out);
  }
  COHORT_ASSIGN_OR_RETURN(Worker * worker, VacantFor(request, now));
  const bool replaces = worker->ever_joined;
  if (replaces && worker->fingerprint != request.fingerprint) {
    out.push_back(effect::Log{
        .severity = Severity::kWarning,
        .worker =
            WorkerLife{.rank = worker->rank, .incarnation = next_incarnation_},
        .text = absl::StrCat("rank ", worker->rank.value(),
                             ": the replacement differs (", request.fingerprint,
                             ", before ", worker->fingerprint,
                             "): its replay is not exact to the bit")});
  }
  ranks_.Transition(*worker, Worker::State::kLive, now);
  worker->incarnation = next_incarnation_;
  next_incarnation_ = next_incarnation_.Next();
  worker->registered = false;
  worker->batch_size = request.batch_size;
  worker->fingerprint = request.fingerprint;
  worker->description = request.description;
  worker->build = request.build;
  worker->leaves_because.reset();
  worker->ever_joined = true;
  // A process that takes a lost rank's place where nobody waited for it
  // starts beside the slowest.
  if (!replaces ||
      settings_.options().on_worker_loss == OnWorkerLoss::kContinue) {
    worker->assignments_finished = StartOfCount(Leads());
  }
  RepeatOutstanding(*worker);
  Welcome(*worker, session, request, now, out);
  out.push_back(effect::Log{
      .worker =
          WorkerLife{.rank = worker->rank, .incarnation = worker->incarnation},
      .text = absl::StrCat("rank ", worker->rank.value(),
                           replaces ? ": a replacement" : "", " joined as ",
                           "incarnation ", worker->incarnation.value(), " (",
                           worker->description, ")")});
  return absl::OkStatus();
}

absl::Status Coordinator::Rejoin(SessionId session, const JoinRequest& request,
                                 Instant now, Effects& out) {
  for (Worker& worker : ranks_.all()) {
    if (worker.incarnation != request.incarnation ||
        worker.state == Worker::State::kVacant) {
      continue;
    }
    if (worker.state == Worker::State::kLive) {
      out.push_back(effect::EndSession{
          .session = worker.session,
          .status = absl::AbortedError("a newer stream of this incarnation "
                                       "took over")});
    } else {
      ranks_.Transition(worker, Worker::State::kLive, now);
    }
    RepeatOutstanding(worker);
    Welcome(worker, session, request, now, out);
    out.push_back(effect::Log{
        .worker =
            WorkerLife{.rank = worker.rank, .incarnation = worker.incarnation},
        .text = absl::StrCat("rank ", worker.rank.value(), " is back")});
    const Rank rank = worker.rank;
    // Not only this worker may have waited for its return.
    Advance(now, out);
    RepeatWait(rank, now, out);
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("incarnation ",
                                         request.incarnation.value(),
                                         " is over; join as a new one"));
}

void Coordinator::Welcome(Worker& worker, SessionId session,
                          const JoinRequest& request, Instant now,
                          Effects& out) {
  ranks_.BindSession(worker, session);
  // Its new streams begin anew.
  paused_.erase(worker.rank);
  worker.last_heard = now;
  worker.last_progress = now;
  worker.waiting = true;
  worker.returned = true;
  if (!request.description.empty()) worker.description = request.description;
  out.push_back(effect::Joined{.session = session,
                               .rank = worker.rank,
                               .incarnation = worker.incarnation,
                               .version = model_.version()});
  if (ledger_.ended()) {
    out.push_back(
        effect::Notify{.session = session,
                       .assignment = FinishedAssignment(ledger_.end_reason())});
  }
}

absl::StatusOr<Worker*> Coordinator::VacantFor(const JoinRequest& request,
                                               Instant now) {
  if (!request.rank.has_value()) {
    Worker* vacant = ranks_.LowestVacant();
    if (vacant != nullptr) return vacant;
    const std::string pending = PendingWorkersText(now);
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", ranks_.size(), " ranks are taken; ",
        pending.empty() ? "start the server with more --workers or wait for a "
                          "vacancy"
                        : pending));
  }
  if (!ranks_.Contains(*request.rank)) {
    if (request.rank->value() < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "join: got --rank=", request.rank->value(), ", want 0 or more"));
    }
    if (settings_.pending().has_value() &&
        request.rank->value() < settings_.pending()->target.workers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("rank ", request.rank->value(), " is not there yet; ",
                       PendingWorkersText(now)));
    }
    // Not the worker's mistake: what starts workers may count more of them than
    // the server, and must not stop the others because of it.
    return absl::OutOfRangeError(absl::StrCat(
        "rank ", request.rank->value(), " is not needed",
        settings_.HadRank(*request.rank) ? " any more: the run goes on with "
                                         : ": the run has ",
        ranks_.size(), " workers, ranks 0 to ", ranks_.size() - 1,
        "; `cohortctl policy set --workers` changes that"));
  }
  Worker& worker = ranks_[*request.rank];
  if (worker.state == Worker::State::kVacant) return &worker;
  const absl::Duration frees =
      worker.state == Worker::State::kLive
          ? worker.last_heard + settings_.options().lease - now
          : worker.lost_at + settings_.options().reconnect_grace - now;
  return absl::AlreadyExistsError(absl::StrCat(
      "rank ", worker.rank.value(), " is ", StateName(worker.state), " (",
      worker.description, "); it frees in ",
      SecondsText(std::max(frees, absl::ZeroDuration())),
      " at the earliest, "
      "once it is silent; another --rank, or none, takes another one"));
}

std::string Coordinator::PendingWorkersText(Instant now) const {
  if (!settings_.pending().has_value() ||
      settings_.pending()->target.workers == ranks_.size()) {
    return "";
  }
  return absl::StrCat("the change of workers to ",
                      settings_.pending()->target.workers,
                      " is pending: ", WaitText(now));
}

std::string Coordinator::SurplusText(Rank rank) const {
  return absl::StrCat("rank ", rank.value(),
                      " is not needed any more: ", SizeText());
}

void Coordinator::NoteBegin(Instant now) {
  if (begin_.has_value()) return;
  begin_ = now;
  for (Worker& worker : ranks_.all()) {
    worker.lost_at = now;
    worker.missed_since = now;
  }
}

void Coordinator::RepeatOutstanding(Worker& worker) {
  if (settings_.sync() || !worker.outstanding.has_value() ||
      worker.outstanding->kind != AssignmentKind::kTrain) {
    return;
  }
  // The half-assembled push read older weights than the repetition will:
  // a new attempt keeps the two apart.
  DropAssembly(worker.rank);
  Assignment& given = *worker.outstanding;
  const PushKey over{.sequence = given.sequence, .attempt = given.attempt};
  given.attempt = given.attempt.Next();
  given.version = model_.version();
  PushHistory& history = ledger_.pushes_of(worker.rank);
  history.Decide(
      over, {.verdict = Verdict::kDropped,
             .version = model_.version(),
             .reason = absl::StrCat("attempt ", over.attempt.value(),
                                    " is over: the assignment was given again "
                                    "as attempt ",
                                    given.attempt.value())});
  history.Give({.sequence = given.sequence, .attempt = given.attempt});
}

void Coordinator::Heartbeat(SessionId session, Instant now,
                            const PhaseSeconds& phases) {
  Worker* worker = ranks_.BySession(session);
  if (worker == nullptr) return;
  worker->last_heard = now;
  if (!phases.empty()) worker->phases = phases;
}

void Coordinator::Leave(SessionId session, const std::string& reason,
                        Instant now, Effects& out) {
  Worker* worker = ranks_.BySession(session);
  if (worker == nullptr) return;
  // One that was told to leave says only that it is done.
  const std::string why = worker->leaves_because.value_or(reason);
  Vacate(worker->rank, VacancyReason::kLeft, why, now, out);
}

void Coordinator::SessionBroken(SessionId session, Instant now, Effects& out) {
  Worker* worker = ranks_.BySession(session);
  if (worker == nullptr) return;
  ranks_.Transition(*worker, Worker::State::kReconnecting, now);
  if (ledger_.ended()) return;
  out.push_back(effect::Log{
      .severity = Severity::kWarning,
      .worker =
          WorkerLife{.rank = worker->rank, .incarnation = worker->incarnation},
      .text = absl::StrCat("rank ", worker->rank.value(),
                           ": its stream broke; it is lost if it is not back "
                           "in ",
                           SecondsText(settings_.options().reconnect_grace))});
}

void Coordinator::Vacate(Rank rank, VacancyReason why,
                         const std::string& reason, Instant now, Effects& out) {
  Worker& worker = ranks_[rank];
  ranks_.Transition(worker, Worker::State::kVacant, now);
  worker.lost_at = now;
  if (worker.registered || !worker.ever_registered) worker.missed_since = now;
  worker.registered = false;
  worker.waiting = false;
  worker.phases.clear();
  worker.leaves_because.reset();
  paused_.erase(rank);
  registrations_.Remove(rank);
  if (ledger_.ended()) return;
  ++ledger_.counts.workers_lost;
  ++ledger_.vacancies[why];
  const std::string gone =
      absl::StrCat("rank ", rank.value(),
                   why == VacancyReason::kLeft ? " has left" : " is lost");
  out.push_back(effect::Log{
      .severity = Severity::kWarning,
      .worker = WorkerLife{.rank = rank, .incarnation = worker.incarnation},
      .text = absl::StrCat(
          gone, " at step ", model_.version().value(), ": ", reason,
          settings_.waits_for_lost()
              ? absl::StrCat(
                    "; waiting for its replacement (cohort-worker --rank=",
                    rank.value(), "), gives up in ",
                    SecondsText(settings_.options().replacement_deadline))
              : "; going on without it")});
  if (round_.has_value() && IsMember(rank)) round_->rendezvous.Forget(rank);
  ReleaseOutstanding(rank, absl::StrCat(gone, ": ", reason), now, out);
  ResumePaused(now, out);
  Advance(now, out);
  // Whoever waits now waits for someone else, or longer.
  RepeatWaits(now, out);
}

void Coordinator::RepeatWait(Rank rank, Instant now, Effects& out) const {
  if (ledger_.ended() || !ranks_.Contains(rank)) return;
  const Worker& worker = ranks_[rank];
  const bool registers = registrations_.Contains(rank);
  if (!worker.waiting || worker.state != Worker::State::kLive ||
      !(worker.registered || registers)) {
    return;
  }
  // Before the start nothing else tells one that is to leave that it may.
  const bool leaves =
      worker.leaves_because.has_value() && !worker.outstanding.has_value();
  out.push_back(effect::Notify{
      .session = worker.session,
      .assignment = leaves ? FinishedAssignment(*worker.leaves_because)
                           : WaitAssignment(worker, now)});
}

void Coordinator::RepeatWaits(Instant now, Effects& out) const {
  for (const Worker& worker : ranks_.all()) RepeatWait(worker.rank, now, out);
}

void Coordinator::ReleaseOutstanding(Rank rank, const std::string& why,
                                     Instant now, Effects& out) {
  Worker& worker = ranks_[rank];
  if (worker.outstanding.has_value() &&
      worker.outstanding->kind != AssignmentKind::kTrain) {
    ReturnShard(worker);
  }
  // Neither a change of policy nor a drain waits for somebody who is lost.
  const bool waits = settings_.waits_for_lost() &&
                     !settings_.pending().has_value() && !ledger_.draining();
  if (!settings_.sync()) {
    DropAssembly(rank);
    if (waits) return;
    ReissuePiece(rank);
    worker.outstanding.reset();
    return;
  }
  if (!round_.has_value() || !IsMember(rank)) return;
  if (waits) {
    FreeRoomOf(rank);
    return;
  }
  // A complete push counts without its sender.
  if (round_->pushes.at(rank).Complete(model_.trainable_partitions())) return;
  const std::vector<Rank>& claims = round_->claims;
  if (!round_->fixed && round_->members.size() > 1 &&
      std::find(claims.begin(), claims.end(), rank) == claims.end()) {
    RemoveCandidate(rank, now, out);
    return;
  }
  AbortAttempt(why, now, out);
}

void Coordinator::Tick(Instant now, Effects& out) {
  NoteBegin(now);
  if (ledger_.ended()) return;
  // A loss may let a change of the number of ranks take effect.
  for (int32_t i = 0; i < ranks_.size(); ++i) {
    const Rank rank(i);
    const Worker& worker = ranks_[rank];
    if (worker.state == Worker::State::kReconnecting &&
        now - worker.lost_at >= settings_.options().reconnect_grace) {
      Vacate(rank, VacancyReason::kDisconnect, "its stream broke", now, out);
    } else if (worker.state == Worker::State::kLive &&
               now - worker.last_heard > settings_.options().lease) {
      const std::string reason =
          absl::StrCat("silent for ", SecondsText(now - worker.last_heard));
      out.push_back(effect::EndSession{.session = worker.session,
                                       .status = absl::AbortedError(reason)});
      Vacate(rank, VacancyReason::kLease, reason, now, out);
    }
  }
  if (ledger_.ended()) return;
  if (!ledger_.started()) {
    CheckValuesDeadline(now, out);
    // A continued run does not wait without end for all.
    if (resumed_) Advance(now, out);
    return;
  }
  EndStall(now);
  ResumePaused(now, out);
  CheckStepDeadline(now, out);
  GiveUpWaiting(now, out);
}

bool Coordinator::HoldsOthersUp(const Worker& worker) const {
  // It makes no progress because the server reads nothing from it.
  if (IsPaused(worker.rank)) return false;
  if (worker.outstanding.has_value() &&
      (!settings_.sync() ||
       worker.outstanding->kind != AssignmentKind::kTrain)) {
    return true;
  }
  // A member counts before it was given the step: a replacement that never
  // registers must not be waited for without end.
  if (!round_.has_value() || !IsMember(worker.rank)) return false;
  return !round_->rendezvous.Waits(worker.rank) &&
         !round_->pushes.at(worker.rank)
              .Complete(model_.trainable_partitions());
}

void Coordinator::CheckStepDeadline(Instant now, Effects& out) {
  if (round_.has_value() && !SettleCalls(now, out)) return;
  const std::optional<CallDissent> crossed = CrossedDissent(now);
  if (crossed.has_value()) {
    EndDissent(*crossed, now, out);
    return;
  }
  for (Worker& worker : ranks_.all()) {
    if (worker.state != Worker::State::kLive || !HoldsOthersUp(worker)) {
      continue;
    }
    if (now - worker.last_progress <= settings_.options().step_deadline)
      continue;
    const std::string reason = absl::StrCat(
        "no progress for ", SecondsText(now - worker.last_progress));
    out.push_back(effect::EndSession{.session = worker.session,
                                     .status = absl::AbortedError(reason)});
    Vacate(worker.rank, VacancyReason::kDeadline, reason, now, out);
    return;
  }
}

void Coordinator::GiveUpWaiting(Instant now, Effects& out) {
  if (ledger_.ended()) return;
  const bool any_live = ranks_.live() > 0;
  for (const Worker& worker : ranks_.all()) {
    if (worker.state != Worker::State::kVacant || !worker.ever_registered) {
      continue;
    }
    if (settings_.options().on_worker_loss == OnWorkerLoss::kContinue &&
        any_live) {
      continue;
    }
    if (now - worker.missed_since <= settings_.options().replacement_deadline)
      continue;
    End(RunOutcome::kWorkerLost,
        absl::StrCat("no replacement for rank ", worker.rank.value(), " in ",
                     SecondsText(now - worker.missed_since)),
        out);
    return;
  }
}

}  // namespace cohort
