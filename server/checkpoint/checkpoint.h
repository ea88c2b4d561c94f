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

// A checkpoint is a directory `checkpoint-<version>` (12 digits) with
//   state.safetensors  weights/<parameter>, velocity/<parameter> (float32),
//                      statistics/<layer>/mean|variance (float64)
//   manifest.json      everything else that a restart needs, and XXH3-64 sums
//                      of the tensor file and of the manifest itself
// It is written under a temporary name, synced and renamed, so that it is
// there as a whole or not at all.

// Who the state belongs to.
struct RunIdentity {
  std::string run_id;
  uint64_t seed = 0;
  // For people.
  std::string policy;
};

struct Checkpoint {
  RunIdentity identity;
  RunState state;
  // Where it was read from.
  std::string path;
};

// Writes a checkpoint of `state` into `dir` (which must exist) and removes
// all but the newest `keep`, and leftovers of interrupted writes.
// Errors: those of FileSystem; earlier checkpoints are then still there.
absl::Status WriteCheckpoint(FileSystem& files, const std::string& dir,
                             int32_t keep, const RunIdentity& identity,
                             const RunState& state);

// The newest checkpoint in `dir` that is whole; none if there is none.
// Damaged ones are passed over and named in `problems`.
// Errors: DataLoss if there are checkpoints but none is whole; those of
//   FileSystem.
absl::StatusOr<std::optional<Checkpoint>> LoadNewestCheckpoint(
    FileSystem& files, const std::string& dir,
    std::vector<std::string>& problems);

// True if `dir` exists and holds at least one checkpoint, whole or not.
bool HoldsCheckpoints(FileSystem& files, const std::string& dir);

}  // namespace cohort
