#include "server/core/lost_ranks.h"

#include "absl/strings/str_cat.h"
#include "server/core/assignments.h"

namespace cohort {
namespace {

void WithdrawFrom(Run& run, Rank rank, const std::string& why, Turn& turn) {
  run.pinned.Return(rank);
  // Neither a change of policy nor a drain waits for a rank that is lost.
  const bool waits = run.settings.waits_for_lost() &&
                     !run.settings.pending().has_value() &&
                     !run.phase.draining();
  run.driver->RankLost(rank, waits, why, turn);
}

bool BlocksOthers(const Run& run, const Worker& worker) {
  // It makes no progress because the server reads nothing from it.
  if (run.flow.IsPaused(worker.rank)) return false;
  // An evaluation or a collection holds up the end of the run.
  if (worker.work.busy() && !worker.work.trains()) return true;
  const bool is_held =
      worker.registered && worker.work.waiting() && run.pinned.HoldsTraining();
  return !is_held && run.driver->StandingOf(worker).blocks_others;
}

}  // namespace

void Lose(Run& run, Rank rank, VacancyReason why, const std::string& reason,
          Turn& turn) {
  run.roster.Vacate(rank, why, reason, turn);
  run.flow.Forget(rank);
  run.registrar.Remove(rank);
  if (run.phase.ended()) return;
  WithdrawFrom(run, rank, absl::StrCat(GoneText(rank, why), ": ", reason),
               turn);
  turn.changed = true;
  // The ranks that wait now wait for another one, or longer.
  turn.repeat_waits = true;
}

void Expel(Run& run, Rank rank, VacancyReason why, const std::string& reason,
           Turn& turn) {
  const Worker& worker = run.ranks[rank];
  if (worker.state == Worker::State::kVacant) return;
  // Where the session broke, the data streams of its incarnation still end.
  turn.out.push_back(effect::EndSession{.session = worker.session,
                                        .status = absl::AbortedError(reason)});
  Lose(run, rank, why, reason, turn);
}

void WithdrawFromLost(Run& run, const std::string& reason, Turn& turn) {
  turn.changed = true;
  for (const Worker& worker : run.ranks.all()) {
    if (worker.state == Worker::State::kVacant) {
      WithdrawFrom(run, worker.rank, reason, turn);
    }
  }
}

void AskToLeave(Run& run, Rank rank, const std::string& reason, Turn& turn) {
  run.roster.NoteLeaving(rank, reason, turn);
  // A worker that waits has nothing to finish.
  if (!run.registrar.Contains(rank) || run.registrar.asked() == rank) return;
  run.registrar.Dismiss(rank, turn);
  NotifyNext(run, run.ranks[rank], turn);
}

void LoseOverdue(Run& run, Turn& turn) {
  for (const Roster::Overdue& overdue : run.roster.FindOverdue(turn.now)) {
    Expel(run, overdue.rank, overdue.why, overdue.reason, turn);
  }
  const std::optional<std::string> silent = run.registrar.OverdueText(turn.now);
  if (run.phase.started() || !silent.has_value()) return;
  Expel(run, *run.registrar.asked(), VacancyReason::kDeadline, *silent, turn);
}

absl::Duration DeadlineOf(const Worker& worker,
                          const CoordinatorOptions& options) {
  const std::optional<Assignment>& given = worker.work.outstanding();
  const size_t steps = given.has_value() ? given->local_steps.size() : 0;
  return options.step_deadline *
         static_cast<double>(std::max<size_t>(steps, 1));
}

void LoseStalled(Run& run, Turn& turn) {
  const CoordinatorOptions& options = run.settings.options();
  for (const Worker& worker : run.ranks.all()) {
    const absl::Duration idle = turn.now - worker.work.last_progress();
    if (worker.state != Worker::State::kLive ||
        idle <= DeadlineOf(worker, options) || !BlocksOthers(run, worker)) {
      continue;
    }
    Expel(run, worker.rank, VacancyReason::kDeadline,
          absl::StrCat("no progress for ", SecondsText(idle)), turn);
    // One a tick: the loss may end the attempt that the others stand still in,
    // and the work that they are given then counts as progress (NextFor).
    return;
  }
}

void GiveUpAbandoned(Run& run, Turn& turn) {
  // The work after training needs no more workers than there are.
  if (run.settings.elastic() && run.driver->TrainingDone() &&
      run.ranks.live() > 0) {
    return;
  }
  run.roster.NoteSize(turn.now);
  const std::optional<std::string> reason = run.roster.FindAbandoned(turn.now);
  if (!reason.has_value()) return;
  turn.end = {.outcome = RunOutcome::kWorkerLost, .reason = *reason};
}

}  // namespace cohort
