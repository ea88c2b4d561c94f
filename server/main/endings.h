#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/events/effects.h"
#include "server/core/model/model_snapshot.h"
#include "server/main/data_shards.h"
#include "server/main/operations.h"
#include "server/records/run_files.h"
#include "server/records/run_recorder.h"
#include "server/run/kept_states.h"
#include "server/run/run_host.h"

namespace cohort {

// The result of a server's run.
struct RunSummary {
  // Absent if the server was stopped before the run ended.
  std::optional<RunOutcome> outcome;
  std::string reason;
  // Null if no worker ever registered a model.
  SharedModel model;
  SharedSnapshot snapshot;
  std::optional<EvaluationRecord> last_evaluation;
  // An error if results or the last checkpoint could not be written.
  absl::Status files;
  // Why a data shard was lost; empty if none was. The server has stopped
  // without results, and another one continues the run from the newest
  // checkpoint.
  std::string lost_shard;
};

// What a run leaves behind: its history, its model, its last checkpoint, and
// its last lines of output.
// Thread safety: safe; Conclude and the like by one thread.
class Endings {
 public:
  // All must outlive it.
  struct Sources {
    RunHost& run;
    RunFiles& files;
    DataShards& shards;
    KeptStates& kept_states;
    Operations& shown;
    std::ostream& out;
  };

  Endings(const Sources& from, std::unique_ptr<RunRecorder> recorder)
      : from_(from), recorder_(std::move(recorder)) {}

  RunRecorder& recorder() { return *recorder_; }

  // Errors of files are kept in `summary`.
  void WriteResults(RunSummary& summary);
  void WriteLastCheckpoint(RunSummary& summary);
  // Does everything that follows the results.
  void Conclude(RunSummary& summary);
  // The same for a server that is stopped while it waits for data shards.
  void ConcludeWithoutShards(RunSummary& summary);

  // Requests of operators; both return the version that was written.
  // `patience`: for the state that programs keep.
  absl::StatusOr<Version> CheckpointNow(
      absl::Duration patience = absl::InfiniteDuration());
  absl::StatusOr<Version> ExportNow();

 private:
  void WriteModelAndStaleness(RunSummary& summary);
  void PrintEnd(const RunSummary& summary);
  absl::StatusOr<RunState> WholeState();

  const Sources from_;
  const std::unique_ptr<RunRecorder> recorder_;
};

}  // namespace cohort
