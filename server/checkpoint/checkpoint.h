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
#include "server/core/effects.h"

namespace cohort {

// A run's state as a checkpoint of common/formats/checkpoint_files.h.
struct Checkpoint {
  RunIdentity identity;
  RunState state;
  // Where it was read from.
  std::string path;
  // Names of newer ones in the same folder, which are not whole.
  std::set<std::string> damaged;
};

// Writes a checkpoint of `state` into `dir` (which must exist), then removes
// older ones, so that `keep` (at least 1) remain with this one, and leftovers
// of interrupted writes. Newer ones are left alone: a restart passed them over
// as damaged, and someone may want to look at them. `damaged` names those that
// are known not to be whole: they do not count, and are removed once `keep`
// others are there.
// Errors: those of FileSystem; earlier checkpoints are then still there, and
//   unless IsIndeterminate() the new one is not (or, as the message says, only
//   the removal of older ones failed).
absl::Status WriteCheckpoint(FileSystem& files, const std::string& dir,
                             int32_t keep, const RunIdentity& identity,
                             const RunState& state,
                             const std::set<std::string>& damaged = {});

// True of a write that failed where nobody can tell whether the checkpoint
// will be there after a crash: while it was being put in place.
bool IsIndeterminate(const absl::Status& write);

// The newest checkpoint in `dir` that is whole; none if there is none.
// Damaged ones are passed over and named in `problems`.
// Errors: DataLoss if there are checkpoints but none is whole;
//   FailedPrecondition if the newest was written by another release,
//   PermissionDenied or ResourceExhausted if it cannot be read here: passing
//   over a good one would lose work silently; those of FileSystem.
absl::StatusOr<std::optional<Checkpoint>> LoadNewestCheckpoint(
    FileSystem& files, const std::string& dir,
    std::vector<std::string>& problems);

// Bytes of the newest checkpoint in `dir`; 0 if there is none.
int64_t NewestCheckpointBytes(FileSystem& files, const std::string& dir);

// True if `dir` exists and holds at least one checkpoint, whole or not.
bool HoldsCheckpoints(FileSystem& files, const std::string& dir);

}  // namespace cohort
