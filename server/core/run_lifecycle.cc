#include "server/core/run_lifecycle.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "server/core/assignments.h"
#include "server/core/lost_ranks.h"
#include "server/core/run_state.h"
#include "server/core/step/push_checks.h"
#include "server/core/step/push_outcome.h"

namespace cohort {
namespace {

std::string DoneText(const Run& run) {
  const CoordinatorOptions& options = run.settings.options();
  return run.ledger.cursor.exhausted()
             ? absl::StrCat("all ", options.epochs, " epochs are done")
             : absl::StrCat("all ", options.max_steps, " steps are done");
}

// The state of `milestone` is on disk, or need not be. Requests that when first
// called; `ended` as in RunState.
bool IsStored(Run& run, RunPhase::Milestone milestone,
              std::optional<std::string> ended, Turn& turn) {
  if (run.settings.options().shards == 1) return true;
  if (run.phase.RequestStored(milestone)) {
    RunState state = CaptureState(run);
    state.ended = std::move(ended);
    state.last = milestone == RunPhase::Milestone::kEnd;
    turn.out.push_back(
        effect::WriteCheckpoint{.state = std::move(state), .awaited = true});
  }
  return run.phase.IsStored(milestone);
}

}  // namespace

bool TakeRegistration(Run& run, const Sender& sender, const ModelLayout& layout,
                      const RunPlan& plan, Turn& turn) {
  if (run.model.registered()) {
    turn.out.push_back(
        effect::RegisterAnswered{.rank = sender.rank,
                                 .incarnation = sender.incarnation,
                                 .answer = run.registrar.AnswerOfModel()});
    // One that repeats its registration has its assignment; to give it that
    // again would look like progress.
    const Worker& known = run.ranks[sender.rank];
    if (!known.registered || !known.work.busy()) {
      run.registrar.Admit(sender.rank);
    }
    return true;
  }
  run.registrar.Await(sender, layout, plan);
  Worker& worker = run.ranks[sender.rank];
  if (!run.phase.ended() && !worker.leaves_because.has_value()) {
    return true;
  }
  run.registrar.Dismiss(sender.rank, turn);
  NotifyNext(run, worker, turn);
  return false;
}

absl::Status InstallModel(Run& run, const Sender& sender,
                          const CoordinatorOptions& options,
                          const ModelLayout& layout, const RunPlan& plan,
                          std::vector<LayerStatistics> statistics, Turn& turn) {
  if (run.registrar.asked() != sender.rank) {
    return absl::FailedPreconditionError(
        absl::StrCat("register: rank ", sender.rank.value(),
                     " sent values that were not requested"));
  }
  COHORT_RETURN_IF_ERROR(
      Validate(statistics, layout, limits::kBatchesTrackedMax));
  COHORT_RETURN_IF_ERROR(run.model.Install(layout, plan, std::move(statistics),
                                           options, run.settings.policy()));
  turn.out.push_back(
      effect::InstallModel{.model = run.model.model(), .settings = options});
  run.ledger.cursor = CursorFor(plan, options);
  turn.Log(absl::StrCat("rank ", sender.rank.value(),
                        " registered the model: ", layout.parameters.size(),
                        " parameters, ", layout.batch_norms.size(),
                        " batch-norm layers, data set ", plan.dataset),
           run.ranks[sender.rank].process());
  run.registrar.AdmitAll(sender.rank, turn);
  return absl::OkStatus();
}

bool ReadyToStart(const Run& run, Instant now) {
  if (!run.model.registered() || run.ranks.Usable().empty()) return false;
  const CoordinatorOptions& options = run.settings.options();
  if (options.elastic()) {
    return run.ranks.present() >= options.workers_min;
  }
  const std::vector<Rank> awaited = run.roster.AwaitedToStart(
      [&run](Rank rank) { return run.registrar.Contains(rank); });
  return awaited.empty() || run.roster.StartLeft(now) <= absl::ZeroDuration();
}

bool SafeToStart(Run& run, Turn& turn) {
  // A version that was restored is on disk.
  return run.model.version() != Version() ||
         IsStored(run, RunPhase::Milestone::kStart, std::nullopt, turn);
}

void StartTraining(Run& run, Turn& turn) {
  run.phase.Start();
  const auto here = static_cast<int32_t>(run.ranks.Usable().size());
  const CoordinatorOptions& options = run.settings.options();
  const std::string who =
      options.elastic()
          ? absl::StrCat(here, here == 1 ? " worker is" : " workers are",
                         " registered (", WorkersText(options), ")")
      : here == run.ranks.size()
          ? absl::StrCat("all ", here, " workers are registered")
          : absl::StrCat(here, " of ", run.ranks.size(),
                         " workers are registered, and the run continues "
                         "without the others");
  run.roster.NoteStart(turn.now);
  turn.Log(absl::StrCat(who, "; training starts at step ",
                        run.model.version().value(), ": ",
                        PolicyText(run.settings.policy())));
}

void EndRun(Run& run, const Turn::End& end, Turn& turn) {
  if (run.phase.ended()) return;
  const std::string reason = end.reason;
  run.phase.End(end.outcome, reason);
  run.flow.ResumeAll(turn);
  run.driver->GiveUp(turn);
  SendAnswers(run, turn.answers, turn);
  SendAnswers(run, turn.answers_after_notices, turn);
  for (const Worker& worker : run.ranks.all()) {
    run.registrar.Dismiss(worker.rank, turn);
    if (worker.state != Worker::State::kLive) continue;
    turn.out.push_back(
        effect::Notify{.session = worker.session,
                       .assignment = FinishedAssignment(run, reason)});
  }
  const bool done = end.outcome == RunOutcome::kFinished ||
                    end.outcome == RunOutcome::kDrained;
  turn.out.push_back(
      effect::Log{.severity = done ? LogLevel::kInfo : LogLevel::kError,
                  .text = absl::StrCat("the run is over: ", reason)});
  turn.out.push_back(effect::RunEnded{.outcome = end.outcome,
                                      .reason = reason,
                                      .model = run.model.model(),
                                      .version = run.model.current()});
}

void BeginDrain(Run& run, const std::string& reason, Turn& turn) {
  run.phase.Drain(reason);
  if (run.phase.started()) {
    WithdrawFromLost(run, "the run is drained", turn);
  } else {
    turn.end = {.outcome = RunOutcome::kDrained, .reason = reason};
  }
}

void EndIfDone(Run& run, Turn& turn) {
  if (run.phase.ended() || !run.driver->TrainingDone() ||
      !run.pinned.Conclude(turn) || !run.pinned.evaluated()) {
    return;
  }
  if (run.phase.draining()) {
    // Without a reason: a drained run that is resumed continues.
    if (!IsStored(run, RunPhase::Milestone::kEnd, std::nullopt, turn)) return;
    EndRun(
        run,
        {.outcome = RunOutcome::kDrained, .reason = run.phase.drain_reason()},
        turn);
    return;
  }
  const std::string reason = DoneText(run);
  if (!IsStored(run, RunPhase::Milestone::kEnd, reason, turn)) return;
  EndRun(run, {.outcome = RunOutcome::kFinished, .reason = reason}, turn);
}

}  // namespace cohort
