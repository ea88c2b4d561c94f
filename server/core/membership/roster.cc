#include "server/core/membership/roster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/incarnation_text.h"
#include "common/limits.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "server/core/ledger/step_shares.h"

namespace cohort {
namespace {

// Whether the run can use batches as the worker states them.
absl::Status CheckBatch(const JoinRequest& request,
                        const RunSettings& settings) {
  if (request.batch_size < 1 || request.batch_size > limits::kBatchSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("join: got batch size ", request.batch_size,
                     ", want 1 to ", limits::kBatchSizeMax));
  }
  if (request.batch_size_max != 0 &&
      (request.batch_size_max < request.batch_size ||
       request.batch_size_max > limits::kBatchSizeMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("join: got batch_size_max ", request.batch_size_max,
                     ", want ", request.batch_size, " (the batch size) to ",
                     limits::kBatchSizeMax, ", or 0 (not given)"));
  }
  const std::optional<RunSettings::Pending>& pending = settings.pending();
  const bool automatic =
      settings.policy().shares.automatic ||
      (pending.has_value() && pending->target.policy.shares.automatic);
  if (automatic && request.batch_size_max == 0) {
    return absl::InvalidArgumentError(
        "join: got no batch_size_max, want --batch_size_max (in a script "
        "job.data(batch_size_max=...)): the server has --shares=auto, and a "
        "larger share needs more memory");
  }
  if (pending.has_value()) {
    COHORT_RETURN_IF_ERROR(CheckStepBatches(pending->target.policy.global_batch,
                                            request.batch_size));
  }
  return CheckStepBatches(settings.policy().global_batch, request.batch_size);
}

}  // namespace

Roster::Roster(const RunSettings& settings, const ModelStore& model,
               const RunPhase& phase, RunLedger& ledger, RankTable& ranks)
    : settings_(settings),
      model_(model),
      phase_(phase),
      ledger_(ledger),
      ranks_(ranks),
      next_incarnation_(settings.options().first_incarnation) {
  for (VacancyReason reason : kVacancyReasons) ledger_.vacancies[reason] = 0;
}

void Roster::Restore(const RunState& restored) {
  resumed_ = true;
  next_incarnation_ = std::max(next_incarnation_, restored.next_incarnation);
  lost_before_ = {restored.lost.begin(), restored.lost.end()};
  never_registered_before_ = {restored.never_registered.begin(),
                              restored.never_registered.end()};
  ranks_.RestoreSequences(restored.next_sequences);
  for (Worker& worker : ranks_.all()) {
    const auto at = static_cast<size_t>(worker.rank.value());
    ledger_.pushes_of(worker.rank).ForgetBelow(worker.work.next_sequence());
    if (at >= restored.batch_sizes.size()) continue;
    // An elastic cohort counts only workers that are there.
    if (settings_.waits_for_lost() || !settings_.elastic()) {
      worker.batch_size = restored.batch_sizes[at];
    }
    // It is missed from the beginning.
    worker.ever_registered = !never_registered_before_.contains(worker.rank);
  }
}

void Roster::NoteBegin(Instant now) {
  if (begin_.has_value()) return;
  begin_ = now;
  for (Worker& worker : ranks_.all()) {
    worker.lost_at = now;
    worker.missed_since = now;
  }
}

void Roster::Hear(SessionId session, const WorkerReport& report, Instant now) {
  Worker* worker = ranks_.BySession(session);
  if (worker == nullptr) return;
  worker->last_heard = now;
  WorkerReport& kept = worker->report;
  if (!report.phases.empty()) kept.phases = report.phases;
  if (report.cpu_cores.has_value()) kept.cpu_cores = report.cpu_cores;
  if (report.resident_bytes.has_value()) {
    kept.resident_bytes = report.resident_bytes;
  }
  if (!report.transport.empty()) kept.transport = report.transport;
}

absl::StatusOr<Worker*> Roster::Check(const Sender& sender, Instant now) {
  const std::string& run_id = settings_.run_id();
  if (sender.run_id != run_id) {
    return OtherRunError(sender.run_id, run_id);
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
                     IncarnationText(sender.incarnation),
                     " is no longer current; join again"));
  }
  worker.last_heard = now;
  return &worker;
}

absl::StatusOr<Worker*> Roster::CheckRegistered(const Sender& sender,
                                                Instant now) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  if (model_.registered() && worker->registered) return worker;
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", worker->rank.value(), " has not registered its model"));
}

absl::Status Roster::CheckTaken(Rank rank) const {
  if (!ranks_.Contains(rank)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got rank ", rank.value(), ", want 0 to ", ranks_.size() - 1));
  }
  COHORT_RETURN_IF_ERROR(phase_.CheckNotOver());
  if (ranks_[rank].state == Worker::State::kVacant) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank.value(), " is vacant"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Roster::Joined> Roster::Join(
    SessionId session, const JoinRequest& request,
    absl::FunctionRef<std::string()> wait_text, Turn& turn) {
  const std::string& run_id = settings_.run_id();
  COHORT_RETURN_IF_ERROR(CheckBatch(request, settings_));
  COHORT_RETURN_IF_ERROR(
      AsRunGone(CheckRunId(request.run_id, run_id, "join: ")));
  if (request.incarnation != Incarnation()) {
    return Rejoin(session, request, turn);
  }
  COHORT_ASSIGN_OR_RETURN(Worker * worker,
                          VacantFor(request, wait_text, turn.now));
  const bool replaces = worker->ever_joined;
  if (replaces && worker->fingerprint != request.fingerprint) {
    turn.Warn(
        absl::StrCat("rank ", worker->rank.value(),
                     ": the replacement computes differently (",
                     request.fingerprint, ", previously ", worker->fingerprint,
                     "): a repeated step may differ in the last bits"),
        WorkerProcess{.rank = worker->rank, .incarnation = next_incarnation_});
  }
  ranks_.Transition(*worker, Worker::State::kLive, turn.now);
  worker->incarnation = next_incarnation_;
  next_incarnation_ = next_incarnation_.Next();
  worker->registered = false;
  worker->batch_size = request.batch_size;
  worker->batch_size_max = request.batch_size_max;
  worker->fingerprint = request.fingerprint;
  worker->description = request.description;
  worker->build = request.build;
  worker->leaves_because.reset();
  worker->ever_joined = true;
  Welcome(*worker, session, request, turn);
  turn.Log(absl::StrCat("rank ", worker->rank.value(),
                        replaces ? ": a replacement" : "", " joined as ",
                        "incarnation ", IncarnationText(worker->incarnation),
                        " (", worker->description, ")"),
           worker->process());
  return Joined{.rank = worker->rank, .replaces = replaces};
}

absl::StatusOr<Roster::Joined> Roster::Rejoin(SessionId session,
                                              const JoinRequest& request,
                                              Turn& turn) {
  for (Worker& worker : ranks_.all()) {
    if (worker.incarnation != request.incarnation ||
        worker.state == Worker::State::kVacant) {
      continue;
    }
    if (request.permitted_rank.value_or(worker.rank) != worker.rank) {
      return absl::PermissionDeniedError(absl::StrCat(
          "join: got incarnation ", IncarnationText(request.incarnation),
          " of rank ", worker.rank.value(), ", want one of rank ",
          request.permitted_rank->value(), ", for which the certificate is"));
    }
    if (worker.state == Worker::State::kLive) {
      turn.out.push_back(effect::EndSession{
          .session = worker.session,
          .status = absl::AbortedError(
              "a newer session of this incarnation replaced this one")});
    } else {
      ranks_.Transition(worker, Worker::State::kLive, turn.now);
    }
    Welcome(worker, session, request, turn);
    turn.Log(absl::StrCat("rank ", worker.rank.value(), " reconnected"),
             worker.process());
    return Joined{.rank = worker.rank, .back = true};
  }
  return absl::AbortedError(
      absl::StrCat("incarnation ", IncarnationText(request.incarnation),
                   " is no longer current; join as a new incarnation"));
}

void Roster::Welcome(Worker& worker, SessionId session,
                     const JoinRequest& request, Turn& turn) {
  ranks_.BindSession(worker, session);
  worker.last_heard = turn.now;
  worker.work.NoteReturn(turn.now);
  if (!request.description.empty()) worker.description = request.description;
  turn.out.push_back(effect::Joined{.session = session,
                                    .rank = worker.rank,
                                    .incarnation = worker.incarnation,
                                    .version = model_.version()});
}

bool Roster::ResizePending() const {
  return settings_.pending().has_value() &&
         settings_.pending()->target.workers != ranks_.size();
}

absl::StatusOr<Worker*> Roster::VacantFor(
    const JoinRequest& request, absl::FunctionRef<std::string()> wait_text,
    Instant now) {
  const auto pending_text = [&] {
    return absl::StrCat("the change of workers to ",
                        settings_.pending()->target.workers,
                        " is pending: ", wait_text());
  };
  if (!request.rank.has_value()) {
    Worker* vacant = ranks_.LowestVacant();
    if (vacant != nullptr) return vacant;
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", ranks_.size(), " ranks are taken; ",
                     ResizePending() ? pending_text()
                                     : "raise --workers (cohortctl policy set) "
                                       "or wait for a vacant rank"));
  }
  const Rank rank = *request.rank;
  if (!ranks_.Contains(rank)) {
    if (rank.value() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("join: got --rank=", rank.value(), ", want 0 or more"));
    }
    if (settings_.pending().has_value() &&
        rank.value() < settings_.pending()->target.workers) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "rank ", rank.value(), " does not exist yet; ", pending_text()));
    }
    // The worker made no mistake: a process manager may start more workers than
    // the server counts, and must not stop the others because of it.
    return absl::OutOfRangeError(
        absl::StrCat("rank ", rank.value(),
                     settings_.HadRank(rank)
                         ? " is no longer needed: the run continues with "
                         : " is not needed: the run has ",
                     ranks_.size(), " workers, ranks 0 to ", ranks_.size() - 1,
                     "; `cohortctl policy set --workers` changes that"));
  }
  Worker& worker = ranks_[rank];
  if (worker.state == Worker::State::kVacant) return &worker;
  const CoordinatorOptions& options = settings_.options();
  const absl::Duration frees =
      worker.state == Worker::State::kLive
          ? worker.last_heard + options.lease - now
          : worker.lost_at + options.reconnect_grace - now;
  return absl::AlreadyExistsError(absl::StrCat(
      "rank ", worker.rank.value(), " is ", StateName(worker.state), " (",
      worker.description, "); it becomes free in ",
      SecondsText(std::max(frees, absl::ZeroDuration())),
      " at the earliest, if that worker stays silent; use another --rank, or "
      "omit --rank to take any free rank"));
}

std::string Roster::SizeText() const {
  return absl::StrCat("the run continues with ", settings_.options().workers,
                      " workers");
}

std::string Roster::SurplusText(Rank rank) const {
  return absl::StrCat("rank ", rank.value(),
                      " is no longer needed: ", SizeText());
}

void Roster::Break(SessionId session, Turn& turn) {
  Worker* worker = ranks_.BySession(session);
  if (worker == nullptr) return;
  const bool usable = worker->usable();
  ranks_.Transition(*worker, Worker::State::kReconnecting, turn.now);
  if (usable) NoteGone(turn.now);
  if (phase_.ended()) return;
  turn.Warn(absl::StrCat("rank ", worker->rank.value(),
                         ": its connection broke; it counts as lost unless "
                         "it reconnects within ",
                         SecondsText(settings_.options().reconnect_grace)),
            worker->process());
}

void Roster::Vacate(Rank rank, VacancyReason why, const std::string& reason,
                    Turn& turn) {
  Worker& worker = ranks_[rank];
  const bool enough = ranks_.present() >= settings_.workers_min();
  const bool usable = worker.usable();
  ranks_.Transition(worker, Worker::State::kVacant, turn.now);
  worker.lost_at = turn.now;
  if (worker.registered || !worker.ever_registered) {
    worker.missed_since = turn.now;
  }
  if (usable) NoteGone(turn.now);
  worker.finished = phase_.ended() && worker.registered;
  worker.registered = false;
  worker.work.SetWaiting(false);
  worker.leaves_because.reset();
  // Shares of a batch are those of the workers that are there.
  if (settings_.elastic() && !phase_.ended()) {
    worker.batch_size = 0;
    // The wait begins with the loss that made it too few, not with an earlier
    // one.
    if (enough) too_few_since_.reset();
    NoteSize(turn.now);
  }
  // The end shows each worker as it was.
  if (phase_.ended()) return;
  worker.report = {};
  ++ledger_.counts.workers_lost;
  ++ledger_.vacancies[why];
  const CoordinatorOptions& options = settings_.options();
  turn.Warn(
      absl::StrCat(
          GoneText(rank, why), " at step ", model_.version().value(), ": ",
          reason,
          settings_.waits_for_lost()
              ? absl::StrCat(
                    "; waiting for its replacement (cohort-worker --rank=",
                    rank.value(), "), time limit: ",
                    phase_.started() ? SecondsText(options.replacement_deadline)
                                     : "none before training starts")
              : "; the others continue without it"),
      worker.process());
}

void Roster::NoteGone(Instant now) {
  if (!settings_.waits_for_lost() && ranks_.Usable().empty()) MissVacant(now);
}

void Roster::MissVacant(Instant now) {
  for (Worker& worker : ranks_.all()) {
    if (worker.state == Worker::State::kVacant) worker.missed_since = now;
  }
}

void Roster::NoteStart(Instant now) {
  for (Worker& worker : ranks_.all()) {
    // As if it had been lost just now, where it is waited for.
    if (!worker.usable()) worker.missed_since = now;
  }
}

void Roster::NoteLeaving(Rank rank, const std::string& reason, Turn& turn) {
  Worker& worker = ranks_[rank];
  worker.leaves_because = absl::StrCat("drained: ", reason);
  turn.Log(absl::StrCat("rank ", rank.value(),
                        " leaves after its current assignment: ", reason),
           worker.process());
}

void Roster::ForgetVacantShares() {
  for (Worker& worker : ranks_.all()) {
    if (worker.state == Worker::State::kVacant) worker.batch_size = 0;
  }
}

void Roster::Resize(int32_t workers, Instant now) {
  ranks_.Resize(workers);
  ledger_.Resize(workers);
  // A rank that comes later may take its time from now on.
  for (Worker& worker : ranks_.all()) {
    if (worker.ever_joined) continue;
    // A rank that comes back: what it was given before is over.
    ledger_.pushes_of(worker.rank).ForgetBelow(worker.work.next_sequence());
    worker.lost_at = now;
    worker.missed_since = now;
  }
}

std::vector<Roster::Overdue> Roster::FindOverdue(Instant now) const {
  const CoordinatorOptions& options = settings_.options();
  std::vector<Overdue> overdue;
  for (const Worker& worker : ranks_.all()) {
    if (worker.state == Worker::State::kReconnecting &&
        now - worker.lost_at >= options.reconnect_grace) {
      overdue.push_back({.rank = worker.rank,
                         .why = VacancyReason::kDisconnect,
                         .reason = "its connection broke"});
    } else if (worker.state == Worker::State::kLive &&
               now - worker.last_heard > options.lease) {
      overdue.push_back(
          {.rank = worker.rank,
           .why = VacancyReason::kLease,
           .reason = absl::StrCat("silent for ",
                                  SecondsText(now - worker.last_heard))});
    }
  }
  return overdue;
}

void Roster::NoteSize(Instant now) {
  if (ranks_.present() >= settings_.workers_min()) {
    too_few_since_.reset();
  } else if (!too_few_since_.has_value()) {
    too_few_since_ = now;
  }
}

std::optional<std::string> Roster::FindAbandoned(Instant now) const {
  const absl::Duration deadline = settings_.options().replacement_deadline;
  if (settings_.elastic()) {
    if (!too_few_since_.has_value() || now - *too_few_since_ <= deadline) {
      return std::nullopt;
    }
    return absl::StrCat(
        ranks_.present(),
        ranks_.present() == 1 ? " worker for " : " workers for ",
        SecondsText(now - *too_few_since_), ", want at least ",
        settings_.workers_min());
  }
  const bool any_live = ranks_.live() > 0;
  for (const Worker& worker : ranks_.all()) {
    if (worker.state != Worker::State::kVacant || !worker.ever_registered) {
      continue;
    }
    const bool waits = settings_.waits_for_lost() && worker.keeps_share();
    if (!waits && any_live) continue;
    const absl::Duration missed = now - worker.missed_since;
    if (missed > deadline) {
      return absl::StrCat("no replacement for rank ", worker.rank.value(),
                          " within ", SecondsText(missed));
    }
  }
  return std::nullopt;
}

std::vector<Rank> Roster::AwaitedToStart(
    absl::FunctionRef<bool(Rank)> registered) const {
  std::vector<Rank> awaited;
  for (const Worker& worker : ranks_.all()) {
    if (worker.usable() || registered(worker.rank)) continue;
    if (settings_.elastic()) {
      awaited.push_back(worker.rank);
      continue;
    }
    // The run had continued without it when its checkpoint was written.
    if (never_registered_before_.contains(worker.rank) ||
        (!settings_.waits_for_lost() && lost_before_.contains(worker.rank))) {
      continue;
    }
    awaited.push_back(worker.rank);
  }
  // Any ranks will do for an elastic cohort; the lowest vacant are named.
  if (settings_.elastic()) {
    const int32_t more = settings_.workers_min() -
                         (ranks_.size() - static_cast<int32_t>(awaited.size()));
    awaited.resize(static_cast<size_t>(std::max(more, 0)));
  }
  return awaited;
}

absl::Duration Roster::StartLeft(Instant now) const {
  if (!resumed_ || !begin_.has_value() || settings_.waits_for_lost() ||
      settings_.elastic()) {
    return absl::InfiniteDuration();
  }
  return std::max(*begin_ + settings_.options().replacement_deadline - now,
                  absl::ZeroDuration());
}

std::string GoneText(Rank rank, VacancyReason why) {
  return absl::StrCat("rank ", rank.value(),
                      why == VacancyReason::kLeft ? " has left" : " is lost");
}

}  // namespace cohort
