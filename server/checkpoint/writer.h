#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/formats/file_system.h"
#include "common/mutex.h"
#include "common/thread_pool.h"
#include "common/timeline.h"
#include "server/checkpoint/checkpoint.h"

namespace cohort {

// Writes checkpoints on its own thread, one at a time.
//
// After a write that failed indeterminately (see IsIndeterminate) the content
// of the directory is unknown, so the writer refuses further writes and says
// why, until the server is restarted. After other failures, such as a full
// disk, the next write is tried as usual.
// Thread safety: safe.
class CheckpointWriter {
 public:
  // Called on the writer's thread when a checkpoint is safe or has failed.
  using Done = std::function<void(Version, const absl::Status&)>;
  // Adds what other processes hold of a state; called on the writer's thread.
  using Complete = std::function<absl::StatusOr<RunState>(RunState)>;

  // `files` and `timeline` must outlive the writer. `timeline` gets each write
  // and may be null. `damaged` as for WriteCheckpoint. `complete` may be null.
  CheckpointWriter(FileSystem& files, std::string dir, int32_t keep,
                   RunIdentity identity, Timeline* timeline = nullptr,
                   std::set<std::string> damaged = {},
                   Complete complete = nullptr);
  // Waits for a write in progress.
  ~CheckpointWriter() = default;

  // Errors: Unavailable: still busy with an earlier checkpoint, including its
  //   `done`; the sticky error of an earlier write. `done` is then not called.
  absl::Status Submit(RunState state, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // As Submit, but follows an earlier checkpoint that is being written. Only
  // the newest such state does, so `done` may not be called.
  // Errors: the sticky error of an earlier write.
  absl::Status SubmitNext(RunState state, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until nothing is being written or waits for it.
  void WaitIdle() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Job {
    RunState state;
    Done done;
  };

  absl::Status UsableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts the thread's work on `job`.
  absl::Status Begin(Job job) ABSL_LOCKS_EXCLUDED(mu_);
  void Write(Job job) ABSL_LOCKS_EXCLUDED(mu_);

  FileSystem& files_;
  const std::string dir_;
  const int32_t keep_;
  const RunIdentity identity_;
  Timeline* const timeline_;
  const std::set<std::string> damaged_;
  const Complete complete_;
  const SteadyClock clock_;

  Mutex mu_;
  CondVar idle_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  // Written next; only while busy.
  std::optional<Job> next_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);

  // Last: its thread uses everything above.
  ThreadPool thread_;
};

}  // namespace cohort
