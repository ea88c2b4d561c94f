#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/formats/file_system.h"
#include "common/measures/staleness_histogram.h"
#include "common/mutex.h"
#include "common/timeline.h"
#include "server/checkpoint/boot_number.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/state_lock.h"
#include "server/checkpoint/writer.h"
#include "server/core/options.h"
#include "server/metrics/run_figures.h"

namespace cohort {

struct RunFilesOptions {
  // Each empty: none are written.
  std::string results_dir;
  std::string checkpoint_dir;
  // Continue from the newest whole checkpoint.
  bool resume = false;
  // Gets the writing of checkpoints; null: nobody wants it. Must outlive the
  // files.
  Timeline* timeline = nullptr;
};

// The directories of a run: its checkpoints, its model and what it continues
// from.
// Thread safety: safe after BeginRun.
class RunFiles {
 public:
  // Creates the directories, locks them for this process, reads the newest
  // checkpoint if the run is to be continued, and takes a boot number.
  // Errors: FailedPrecondition: flags that do not fit what is there, each
  //   with what to do, or a directory that cannot be used; DataLoss: no
  //   checkpoint is whole.
  static absl::StatusOr<std::unique_ptr<RunFiles>> Open(
      FileSystem& files, const RunFilesOptions& options);

  // Of this life of the server: above those of all earlier ones that used the
  // same --checkpoint_dir. Without one nothing is continued, and the run's
  // identifier tells its workers from others.
  Incarnation first_incarnation() const { return first_incarnation_; }

  // None: a new run.
  const std::optional<Checkpoint>& restored() const { return restored_; }

  // Call once, before anything is written.
  void BeginRun(const RunIdentity& identity);

  bool keeps_checkpoints() const { return !options_.checkpoint_dir.empty(); }
  bool keeps_results() const { return !options_.results_dir.empty(); }
  const RunFilesOptions& options() const { return options_; }

  // Writes a checkpoint in the background; skipped, counted and logged if an
  // earlier one is still being written. Returns at once.
  void OfferCheckpoint(RunState state);
  // Writes a checkpoint and waits for it. OK at once if that version, with the
  // same statistics, is the last one written.
  // Errors: FailedPrecondition no --checkpoint_dir; those of the writer.
  absl::Status SaveCheckpoint(const RunState& state);
  // Errors: FailedPrecondition no --results_dir; those of FileSystem.
  absl::Status WriteModel(const RegisteredModel& model,
                          const ModelSnapshot& snapshot);
  // Into staleness.csv: how many pushes were decided with which staleness.
  // Nothing if none was (sync).
  // Errors: as WriteModel.
  absl::Status WriteStaleness(const StalenessCounts& counts);
  std::string model_path() const;

  CheckpointFigures figures() const ABSL_LOCKS_EXCLUDED(mu_);

  int64_t checkpoints_skipped() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  RunFiles(FileSystem& files, const RunFilesOptions& options)
      : files_(files), options_(options) {}

  // What tells one checkpoint from another. The statistics may change where
  // the version does not: they are collected over its weights.
  struct Written {
    Version version;
    std::shared_ptr<const StatisticsSets> statistics;
  };
  static Written WrittenOf(const RunState& state) {
    return {.version = state.snapshot->version,
            .statistics = state.snapshot->statistics};
  }

  absl::Status Prepare();
  absl::Status Restore();
  absl::Status Boot();
  // `begin`: of the writing.
  void OnWritten(const Written& written, Instant begin,
                 const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction and BeginRun.
  FileSystem& files_;
  const RunFilesOptions options_;
  std::unique_ptr<StateLock> results_lock_;
  std::unique_ptr<StateLock> lock_;
  Incarnation first_incarnation_ = BootNumber().first_incarnation();
  std::optional<Checkpoint> restored_;
  const SteadyClock clock_;

  mutable Mutex mu_;
  std::optional<Written> last_written_ ABSL_GUARDED_BY(mu_);
  CheckpointFigures figures_ ABSL_GUARDED_BY(mu_);
  int64_t checkpoints_skipped_ ABSL_GUARDED_BY(mu_) = 0;

  // Last: its thread uses everything above. Null without checkpoints.
  std::unique_ptr<CheckpointWriter> writer_;
};

// The options that a run goes on with: the settings of `checkpoint` rule over
// those of `options`, but for the names in `given`, which somebody asks for
// explicitly, with a value that the run was not started with: the same
// command line again, as after a crash, takes back no change that was made
// while it ran. What then differs from the checkpoint is a change of policy at
// its version, which the Coordinator records.
// Errors: FailedPrecondition: the checkpoint has settings that this release
//   does not know.
absl::StatusOr<CoordinatorOptions> ContinuedOptions(
    const Checkpoint& checkpoint, const CoordinatorOptions& options,
    const std::set<std::string>& given);

// Refuses to continue `checkpoint` under options that would silently change
// what the run computes; logs differences that only change how it goes on.
// Errors: FailedPrecondition naming the flag, its value and the one wanted.
absl::Status CheckContinuable(const Checkpoint& checkpoint,
                              const CoordinatorOptions& options);

}  // namespace cohort
