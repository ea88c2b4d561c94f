#include "server/checkpoint/writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {

CheckpointWriter::CheckpointWriter(FileSystem& files, std::string dir,
                                   int32_t keep, RunIdentity identity,
                                   Timeline* timeline,
                                   std::set<std::string> damaged,
                                   Complete complete)
    : files_(files),
      dir_(std::move(dir)),
      keep_(keep),
      identity_(std::move(identity)),
      timeline_(timeline),
      damaged_(std::move(damaged)),
      complete_(std::move(complete)),
      thread_({.name = "checkpoint"}) {}

absl::Status CheckpointWriter::UsableLocked() const {
  if (failure_.ok()) return absl::OkStatus();
  return absl::Status(
      failure_.code(),
      absl::StrCat("an earlier write may have left a partial checkpoint, so no "
                   "more are written until a restart: ",
                   failure_.message()));
}

absl::Status CheckpointWriter::Submit(RunState state, Done done) {
  {
    MutexLock lock(mu_);
    COHORT_RETURN_IF_ERROR(UsableLocked());
    if (busy_) {
      return absl::UnavailableError("busy writing an earlier checkpoint");
    }
    busy_ = true;
  }
  return Begin({.state = std::move(state), .done = std::move(done)});
}

absl::Status CheckpointWriter::SubmitNext(RunState state, Done done) {
  std::optional<Job> job =
      Job{.state = std::move(state), .done = std::move(done)};
  {
    MutexLock lock(mu_);
    COHORT_RETURN_IF_ERROR(UsableLocked());
    if (busy_) {
      // A state that waited is freed without the lock.
      next_.swap(job);
      return absl::OkStatus();
    }
    busy_ = true;
  }
  return Begin(*std::move(job));
}

absl::Status CheckpointWriter::Begin(Job job) {
  // The queue cannot be full, which would leave busy_ set: there is one job at
  // a time.
  return thread_.Submit([this, job = std::move(job)]() mutable {
    for (std::optional<Job> now = std::move(job); now.has_value();) {
      Write(*std::exchange(now, std::nullopt));
      MutexLock lock(mu_);
      now = std::exchange(next_, std::nullopt);
      if (now.has_value()) continue;
      busy_ = false;
      idle_.NotifyAll();
    }
  });
}

void CheckpointWriter::Write(Job job) {
  const Instant begin = clock_.Now();
  const Version version = job.state.snapshot->version;
  absl::Status status;
  {
    // An earlier one may just have failed.
    MutexLock lock(mu_);
    status = UsableLocked();
  }
  if (status.ok()) {
    const absl::StatusOr<RunState> whole =
        complete_ ? complete_(std::move(job.state)) : std::move(job.state);
    // Nothing has been written yet, whatever the cause.
    status = whole.ok() ? WriteCheckpoint(files_, dir_, keep_, identity_,
                                          *whole, damaged_)
                        : absl::UnavailableError(whole.status().message());
  }
  if (timeline_ != nullptr) {
    timeline_->Add({.name = "checkpoint",
                    .begin = begin,
                    .end = clock_.Now(),
                    .facts = {{"version", version.value()},
                              {"ok", int64_t{status.ok()}}}});
  }
  job.done(version, status);
  MutexLock lock(mu_);
  if (failure_.ok() && IsIndeterminate(status)) failure_ = status;
}

void CheckpointWriter::WaitIdle() {
  MutexLock lock(mu_);
  while (busy_) idle_.Wait(mu_);
}

}  // namespace cohort
