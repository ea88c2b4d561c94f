#include "server/core/membership/lost_ranks.h"

#include "absl/strings/str_cat.h"
#include "server/core/assignments.h"

namespace cohort {
namespace {

void WithdrawFrom(const Run& run, Rank rank, const std::string& why,
                  Turn& turn) {
  Worker& worker = run.parts.ranks[rank];
  if (worker.outstanding.has_value() &&
      worker.outstanding->kind != AssignmentKind::kTrain) {
    run.parts.pinned.Return(rank);
    worker.outstanding.reset();
  }
  // Neither a change of policy nor a drain waits for a rank that is lost.
  const bool waits = run.parts.settings.waits_for_lost() &&
                     !run.parts.settings.pending().has_value() &&
                     !run.parts.ledger.draining();
  run.driver.RankLost(rank, waits, why, turn);
}

bool HoldsOthersUp(const Run& run, const Worker& worker) {
  // It makes no progress because the server reads nothing from it.
  if (run.parts.flow.IsPaused(worker.rank)) return false;
  return (worker.outstanding.has_value() &&
          worker.outstanding->kind != AssignmentKind::kTrain) ||
         run.driver.HoldsOthersUp(worker);
}

}  // namespace

void Lose(const Run& run, Rank rank, VacancyReason why,
          const std::string& reason, Turn& turn) {
  run.roster.Vacate(rank, why, reason, turn);
  run.parts.flow.Forget(rank);
  run.registrar.Remove(rank);
  if (run.parts.ledger.ended()) return;
  WithdrawFrom(run, rank, absl::StrCat(GoneText(rank, why), ": ", reason),
               turn);
  turn.changed = true;
  // Whoever waits now waits for someone else, or longer.
  turn.repeat_waits = true;
}

void EndSession(const Run& run, Rank rank, const std::string& reason,
                Turn& turn) {
  const Worker& worker = run.parts.ranks[rank];
  if (worker.state == Worker::State::kVacant) return;
  // Where the session broke, the data streams of its incarnation still end.
  turn.out.push_back(effect::EndSession{.session = worker.session,
                                        .status = absl::AbortedError(reason)});
}

void WithdrawFromLost(const Run& run, const std::string& reason, Turn& turn) {
  turn.changed = true;
  for (const Worker& worker : run.parts.ranks.all()) {
    if (worker.state == Worker::State::kVacant) {
      WithdrawFrom(run, worker.rank, reason, turn);
    }
  }
}

void AskToLeave(const Run& run, Rank rank, const std::string& reason,
                Turn& turn) {
  Worker& worker = run.parts.ranks[rank];
  worker.leaves_because = absl::StrCat("drained: ", reason);
  turn.out.push_back(effect::Log{
      .worker = WorkerProcess{.rank = rank, .incarnation = worker.incarnation},
      .text = absl::StrCat("rank ", rank.value(),
                           " leaves after its current assignment: ", reason)});
  // A worker that waits has nothing to finish.
  if (!run.registrar.Contains(rank) || run.registrar.asked() == rank) return;
  run.registrar.Dismiss(rank, turn);
  turn.out.push_back(effect::Notify{
      .session = worker.session, .assignment = NextFor(run, worker, turn.now)});
}

void Fence(const Run& run, const Turn::Fencing& fencing, Turn& turn) {
  EndSession(run, fencing.rank, fencing.reason, turn);
  if (run.parts.ranks[fencing.rank].state == Worker::State::kVacant) return;
  Lose(run, fencing.rank, VacancyReason::kMismatch, fencing.reason, turn);
}

void LoseOverdue(const Run& run, Turn& turn) {
  for (const Roster::Overdue& overdue : run.roster.FindOverdue(turn.now)) {
    EndSession(run, overdue.rank, overdue.reason, turn);
    Lose(run, overdue.rank, overdue.why, overdue.reason, turn);
  }
  const std::optional<std::string> silent = run.registrar.OverdueText(turn.now);
  if (run.parts.ledger.started() || !silent.has_value()) return;
  const Rank rank = *run.registrar.asked();
  EndSession(run, rank, *silent, turn);
  Lose(run, rank, VacancyReason::kDeadline, *silent, turn);
}

void LoseStalled(const Run& run, Turn& turn) {
  const CoordinatorOptions& options = run.parts.settings.options();
  for (const Worker& worker : run.parts.ranks.all()) {
    const absl::Duration idle = turn.now - worker.last_progress;
    if (worker.state != Worker::State::kLive || idle <= options.step_deadline ||
        !HoldsOthersUp(run, worker)) {
      continue;
    }
    const std::string reason =
        absl::StrCat("no progress for ", SecondsText(idle));
    EndSession(run, worker.rank, reason, turn);
    Lose(run, worker.rank, VacancyReason::kDeadline, reason, turn);
    return;
  }
}

void GiveUpAbandoned(const Run& run, Turn& turn) {
  // The work after training needs no more workers than there are.
  if (run.parts.settings.elastic() && run.driver.TrainingDone() &&
      run.parts.ranks.live() > 0) {
    return;
  }
  run.roster.NoteSize(turn.now);
  const std::optional<std::string> reason = run.roster.FindAbandoned(turn.now);
  if (!reason.has_value()) return;
  turn.end = {.outcome = RunOutcome::kWorkerLost, .reason = *reason};
}

}  // namespace cohort
