#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/formats/file_system.h"
#include "common/formats/state_lock.h"
#include "common/measures/staleness_histogram.h"
#include "common/mutex.h"
#include "common/timeline.h"
#include "server/checkpoint/boot_number.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/writer.h"
#include "server/core/settings/options.h"
#include "server/metrics/run_figures.h"

namespace cohort {

struct RunFilesOptions {
  // No files are written to a directory whose name is empty.
  std::string results_dir;
  std::string checkpoint_dir;
  // Continue from the newest whole checkpoint.
  bool resume = false;
  // Receives spans for the writing of checkpoints. May be null. Must outlive
  // the files.
  Timeline* timeline = nullptr;
};

// The directories of a run: its checkpoints, its model and the state it
// continues from.
// Thread safety: safe after BeginRun.
class RunFiles {
 public:
  // Creates the directories, locks them for this process, reads the newest
  // checkpoint if the run is to be continued, and takes a boot number.
  // Errors: FailedPrecondition: flags that do not match the directories'
  //   contents, each with what to do, or a directory that cannot be used;
  //   DataLoss: no checkpoint is whole.
  static absl::StatusOr<std::unique_ptr<RunFiles>> Open(
      FileSystem& files, const RunFilesOptions& options);

  // The first incarnation of this start of the server: above those of all
  // earlier starts with the same --checkpoint_dir. Without that flag no run is
  // continued, and the run's identifier distinguishes its workers from others.
  Incarnation first_incarnation() const { return first_incarnation_; }

  // Absent for a new run, and after ForgetRestored.
  const std::optional<Checkpoint>& restored() const { return restored_; }
  // Call once the run has begun, or the weights and slots of the version that
  // it began with would stay in memory until its end.
  void ForgetRestored() { restored_.reset(); }

  // Call once, before anything is written. `complete` as for CheckpointWriter.
  void BeginRun(const RunIdentity& identity,
                CheckpointWriter::Complete complete = nullptr);

  bool keeps_checkpoints() const { return !options_.checkpoint_dir.empty(); }
  bool keeps_results() const { return !options_.results_dir.empty(); }
  const RunFilesOptions& options() const { return options_; }

  // Writes a checkpoint in the background; skipped, counted and logged if an
  // earlier one is still being written. Returns at once.
  void OfferCheckpoint(RunState state);
  // Writes a checkpoint in the background, after the one that is being written
  // if there is one: for a change that must not be lost. No-op if that state is
  // the last one written, or without --checkpoint_dir.
  void KeepChange(RunState state) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a checkpoint and waits for it. OK at once if that state is the last
  // one written.
  // Errors: FailedPrecondition no --checkpoint_dir; those of the writer.
  absl::Status SaveCheckpoint(const RunState& state);
  // Returns once no checkpoint is being written.
  void AwaitWriter();
  // Writes model.safetensors, and model_average.safetensors if an average is
  // kept.
  // Errors: FailedPrecondition no --results_dir; those of FileSystem.
  absl::Status WriteModel(const RegisteredModel& model,
                          const ModelSnapshot& snapshot);
  // Writes staleness.csv: the number of pushes decided at each staleness. No-op
  // if there was none (sync).
  // Errors: as WriteModel.
  absl::Status WriteStaleness(const StalenessCounts& counts);
  std::string model_path() const;

  CheckpointFigures figures() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  RunFiles(FileSystem& files, const RunFilesOptions& options)
      : files_(files), options_(options) {}

  // Identifies a checkpoint, by everything that may change while the version
  // does not.
  struct Written {
    Version version;
    // Collected over the weights of the version.
    std::shared_ptr<const StatisticsSets> statistics;
    SettingValues settings;
    size_t changes = 0;
    int64_t epochs = 0;
    int64_t max_steps = 0;
    bool ended = false;
  };
  static Written WrittenOf(const RunState& state);
  bool IsWritten(const Written& state) const ABSL_LOCKS_EXCLUDED(mu_);
  CheckpointWriter::Done OnDone(const Written& state);

  absl::Status Prepare();
  absl::Status Restore();
  absl::Status Boot();
  // `begin` is when the writing began.
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

  // Last: its thread uses everything above. Null without checkpoints.
  std::unique_ptr<CheckpointWriter> writer_;
};

// The options with which a run continues. The settings of `checkpoint` take
// precedence over those of `options`, except for names in `given`, which were
// given explicitly, if their value differs from the one that the run was
// started with. So the same command line, as after a crash, does not revert a
// change that was made while the run was active. The length of the run is the
// checkpoint's, too, unless `given` has it. Remaining differences from the
// checkpoint are a change of policy at its version, which the Coordinator
// records.
// Errors: FailedPrecondition: the checkpoint has settings that this release
//   does not know.
absl::StatusOr<CoordinatorOptions> ContinuedOptions(
    const Checkpoint& checkpoint, const CoordinatorOptions& options,
    const std::set<std::string>& given);

// Refuses to continue `checkpoint` under options that would silently change
// what the run computes. Logs differences that only change how it continues.
// Errors: FailedPrecondition naming the flag, its value and the one wanted.
absl::Status CheckContinuable(const Checkpoint& checkpoint,
                              const CoordinatorOptions& options);

}  // namespace cohort
