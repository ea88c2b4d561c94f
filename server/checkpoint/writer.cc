#include "server/checkpoint/writer.h"

#include <utility>

#include "absl/strings/str_cat.h"

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

absl::Status CheckpointWriter::Submit(RunState state, Done done) {
  {
    MutexLock lock(mu_);
    if (!failure_.ok()) {
      return absl::Status(
          failure_.code(),
          absl::StrCat("an earlier write may have left a partial checkpoint, "
                       "so no more are written until a restart: ",
                       failure_.message()));
    }
    if (busy_) {
      return absl::UnavailableError("busy writing an earlier checkpoint");
    }
    busy_ = true;
  }
  return thread_.Submit([this, state = std::move(state),
                         done = std::move(done)]() mutable {
    const Instant begin = clock_.Now();
    const Version version = state.snapshot->version;
    const absl::StatusOr<RunState> whole =
        complete_ ? complete_(std::move(state)) : std::move(state);
    // Nothing has been written yet, whatever the cause.
    const absl::Status status =
        whole.ok()
            ? WriteCheckpoint(files_, dir_, keep_, identity_, *whole, damaged_)
            : absl::UnavailableError(whole.status().message());
    if (timeline_ != nullptr) {
      timeline_->Add({.name = "checkpoint",
                      .begin = begin,
                      .end = clock_.Now(),
                      .facts = {{"version", version.value()},
                                {"ok", int64_t{status.ok()}}}});
    }
    done(version, status);
    MutexLock lock(mu_);
    busy_ = false;
    if (IsIndeterminate(status)) failure_ = status;
    idle_.NotifyAll();
  });
}

void CheckpointWriter::WaitIdle() {
  MutexLock lock(mu_);
  while (busy_) idle_.Wait(mu_);
}

}  // namespace cohort
