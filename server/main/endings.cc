#include "server/main/endings.h"

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/measures/staleness_histogram.h"
#include "common/status_macros.h"
#include "server/records/progress_text.h"

namespace cohort {
namespace {

void KeepFirst(absl::Status& kept, const absl::Status& status) {
  if (kept.ok()) kept = status;
}

}  // namespace

absl::StatusOr<RunState> Endings::WholeState() {
  COHORT_ASSIGN_OR_RETURN(RunState state, from_.run.State());
  return from_.shards.WithAllPartitions(std::move(state));
}

void Endings::WriteResults(RunSummary& summary) {
  WriteModelAndStaleness(summary);
  // The report says whether the model was written.
  KeepFirst(summary.files, from_.shown.WriteReport());
}

void Endings::WriteModelAndStaleness(RunSummary& summary) {
  if (from_.run.partitions().model() == nullptr) return;
  const absl::StatusOr<RunState> state = WholeState();
  if (!state.ok()) return KeepFirst(summary.files, state.status());
  summary.model = state->model;
  summary.snapshot = state->snapshot;
  if (!from_.files.keeps_results()) return;
  KeepFirst(summary.files,
            from_.files.WriteStaleness(from_.run.Status().staleness));
  const absl::Status written =
      from_.files.WriteModel(*state->model, *state->snapshot);
  KeepFirst(summary.files, written);
  Log(written.ok() ? LogLevel::kInfo : LogLevel::kError,
      written.ok()
          ? absl::StrCat("the model of step ", state->snapshot->version.value(),
                         " was written to ", from_.files.model_path())
          : absl::StrCat("the model could not be written: ",
                         written.message()));
}

void Endings::Conclude(RunSummary& summary) {
  recorder_->Finish();
  summary.last_evaluation = recorder_->last_evaluation();
  WriteLastCheckpoint(summary);
  PrintEnd(summary);
}

void Endings::ConcludeWithoutShards(RunSummary& summary) {
  recorder_->Finish();
  // A change may not be on disk yet.
  WriteLastCheckpoint(summary);
  if (const absl::StatusOr<RunState> state = from_.run.State(); state.ok()) {
    summary.snapshot = state->snapshot;
  }
  PrintEnd(summary);
}

void Endings::WriteLastCheckpoint(RunSummary& summary) {
  if (!from_.files.keeps_checkpoints()) return;
  const absl::StatusOr<RunState> state = from_.run.State();
  // Without a model there is nothing to save.
  if (!state.ok()) return;
  const Version version = state->snapshot->version;
  if (from_.kept_states.Lacks(version)) {
    Log(LogLevel::kWarning,
        absl::StrCat("no checkpoint of step ", version.value(),
                     ", because no worker has sent its kept state; the last "
                     "one is of an earlier step"));
    return;
  }
  KeepFirst(summary.files, from_.files.SaveCheckpoint(*state));
}

void Endings::PrintEnd(const RunSummary& summary) {
  if (!summary.outcome.has_value() && summary.snapshot == nullptr &&
      from_.run.Policy().history.size() > 1) {
    from_.out
        << "stopped before a worker had registered a model, hence without a "
           "checkpoint: changes of settings are lost; give them as flags\n";
  }
  if (!summary.outcome.has_value() && summary.snapshot != nullptr) {
    from_.out << "stopped at step " << summary.snapshot->version;
    if (!from_.files.keeps_checkpoints()) {
      from_.out << "; no checkpoint was written (no --checkpoint_dir)\n";
    } else if (summary.files.ok()) {
      from_.out << "; the checkpoint is in "
                << from_.files.options().checkpoint_dir
                << ", continue with the same flags and --resume\n";
    } else {
      from_.out << "; " << summary.files.message() << '\n';
    }
  }
  const std::string staleness = StalenessText(from_.run.Status().staleness);
  if (!staleness.empty()) {
    from_.out << "staleness of pushes, in steps: " << staleness << '\n';
  }
  if (summary.outcome.has_value() && summary.last_evaluation.has_value()) {
    PrintMeasures(*summary.last_evaluation, summary.snapshot, from_.out);
  }
  from_.out << std::flush;
}

absl::StatusOr<Version> Endings::CheckpointNow(absl::Duration patience) {
  COHORT_ASSIGN_OR_RETURN(RunState state, from_.run.State());
  const absl::StatusOr<RunState> whole =
      from_.kept_states.Complete(std::move(state), patience);
  // To the client, Unavailable would mean that this server cannot be reached.
  if (!whole.ok()) {
    return absl::FailedPreconditionError(whole.status().message());
  }
  COHORT_RETURN_IF_ERROR(
      from_.shards.ForOperator(from_.files.SaveCheckpoint(*whole)));
  return whole->snapshot->version;
}

absl::StatusOr<Version> Endings::ExportNow() {
  const absl::StatusOr<RunState> state = WholeState();
  COHORT_RETURN_IF_ERROR(from_.shards.ForOperator(state.status()));
  COHORT_RETURN_IF_ERROR(from_.shards.ForOperator(
      from_.files.WriteModel(*state->model, *state->snapshot)));
  return state->snapshot->version;
}

}  // namespace cohort
