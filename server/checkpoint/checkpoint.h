#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/file_system.h"
#include "server/core/effects.h"

namespace cohort {

// A checkpoint is a directory `checkpoint-<version>` (12 digits), or
// `checkpoint-<version>.<n>` (6 digits) where that version was written before,
// for nothing that may be the only whole checkpoint is ever replaced. It holds
//   state.safetensors  weights/<parameter> (float32),
//                      <slot>/<parameter> (float32) of those slots of the
//                      optimizer that there are, such as velocity,
//                      updates/<parameter> (int64, one a slice, adam only),
//                      statistics/<kind>/<layer>/mean|variance (float64)
//   manifest.json      everything else that a restart needs, and XXH3-64 sums
//                      of the tensor file and of the manifest itself
// It is written under a temporary name, synced and renamed, so that it is
// there as a whole or not at all.

// Who the state belongs to.
struct RunIdentity {
  std::string run_id;
  uint64_t seed = 0;
  // That the process started with; for people. What is in force is in
  // RunState::settings.
  std::string policy;
};

struct Checkpoint {
  RunIdentity identity;
  RunState state;
  // Where it was read from.
  std::string path;
};

// Writes a checkpoint of `state` into `dir` (which must exist), then removes
// older ones, so that `keep` (at least 1) remain with this one, and leftovers
// of interrupted writes. Newer ones are left alone: a restart passed them over
// as damaged, and someone may want to look at them.
// Errors: those of FileSystem; earlier checkpoints are then still there, and
//   unless IsIndeterminate() the new one is not (or, as the message says, only
//   the removal of older ones failed).
absl::Status WriteCheckpoint(FileSystem& files, const std::string& dir,
                             int32_t keep, const RunIdentity& identity,
                             const RunState& state);

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
