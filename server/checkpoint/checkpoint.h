#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/checkpoint_files.h"
#include "common/formats/file_system.h"
#include "server/core/events/effects.h"

namespace cohort {

// The run that a checkpoint's state belongs to.
struct RunIdentity {
  std::string run_id;
  uint64_t seed = 0;
  // The run's name for people.
  std::string run_name;
};

// A run's state as a checkpoint of common/formats/checkpoint_files.h.
struct Checkpoint {
  RunIdentity identity;
  RunState state;
  // The directory it was read from.
  std::string path;
  // Names of newer checkpoints in the same folder that are not whole.
  std::set<std::string> damaged;
};

// Writes a checkpoint of `state` into `dir` (which must exist). Then removes
// older ones, so that `keep` (at least 1) remain including this one, and
// leftovers of interrupted writes. Newer checkpoints are left alone: a restart
// skipped them as damaged, and an operator may want to inspect them. `damaged`
// names the checkpoints known not to be whole. They do not count, and are
// removed once `keep` others exist.
// Errors: those of FileSystem; DataLoss if `state` could not be read back,
// which
//   is a bug of ours. Earlier checkpoints then still exist. Unless
//   IsIndeterminate(), the new one does not (or, as the message says, only the
//   removal of older ones failed).
absl::Status WriteCheckpoint(FileSystem& files, const std::string& dir,
                             int32_t keep, const RunIdentity& identity,
                             const RunState& state,
                             const std::set<std::string>& damaged = {});

// True if a write failed while the checkpoint was being put in place, so that
// it is unknown whether the checkpoint will exist after a crash.
bool IsIndeterminate(const absl::Status& write);

// The newest whole checkpoint in `dir`; nullopt if there are no checkpoints.
// Damaged ones are skipped and named in `problems`.
// Errors: DataLoss if there are checkpoints but none is whole;
//   FailedPrecondition if the newest was written by another release,
//   PermissionDenied or ResourceExhausted if it cannot be read here, because
//   skipping a good one would lose work silently; those of FileSystem.
absl::StatusOr<std::optional<Checkpoint>> LoadNewestCheckpoint(
    FileSystem& files, const std::string& dir,
    std::vector<std::string>& problems);

// Bytes of the newest checkpoint in `dir`; 0 if there is none.
int64_t NewestCheckpointBytes(FileSystem& files, const std::string& dir);

// True if `dir` exists and holds at least one checkpoint, whole or not.
bool HoldsCheckpoints(FileSystem& files, const std::string& dir);

}  // namespace cohort
