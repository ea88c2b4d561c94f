#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/formats/file_system.h"

namespace cohort {

// A checkpoint is a directory `checkpoint-<version>` (12 digits). If that
// version was written before, it is `checkpoint-<version>.<n>` (6 digits),
// because a directory that may be the only whole checkpoint is never replaced.
// It holds
//   state.safetensors  weights/<parameter> (float32),
//                      <slot>/<parameter> (float32) of those slots of the
//                      optimizer that there are, such as velocity,
//                      updates/<parameter> (int64, one a slice, adam only),
//                      statistics/<kind>/<layer>/mean|variance (float64)
//   manifest.json      everything else that a restart needs, XXH3-64 sums
//                      of the tensor file and of the manifest itself; its
//                      text is that of EncodeCheckpointManifest to the byte
// It is written under a temporary name, synced and renamed, so that it either
// exists as a whole or not at all.
//
// This file covers what can be known without the server's code: a checkpoint's
// name, whether its bytes are those that were written, and which run it belongs
// to. Only the server interprets the state.

inline constexpr char kCheckpointTensors[] = "state.safetensors";
inline constexpr char kCheckpointManifest[] = "manifest.json";
// Ample for any model; a larger file is damaged and is not read.
inline constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
// Prefix of the names of checkpoints that are being written, or that a crash
// left behind.
inline constexpr char kCheckpointTemporary[] = ".tmp-";

// The name of a checkpoint's directory. Ordered by age.
struct CheckpointName {
  int64_t version = 0;
  // Counts the checkpoints of one version.
  int64_t repetition = 0;

  friend auto operator<=>(const CheckpointName&,
                          const CheckpointName&) = default;

  std::string Text() const;
  // nullopt for other names, such as those of copies.
  static std::optional<CheckpointName> Parse(absl::string_view text);
};

// The checkpoints in `dir`, whole or not, in the order of age.
// Errors: those of FileSystem.
absl::StatusOr<std::vector<CheckpointName>> ListCheckpoints(
    FileSystem& files, const std::string& dir);

// The run that a checkpoint's state belongs to.
struct RunIdentity {
  std::string run_id;
  uint64_t seed = 0;
  // The policy that the process started with; for people. RunState::settings
  // holds the settings in force.
  std::string policy;
  // The run's name for people.
  std::string run_name;
};

struct CheckpointManifest {
  RunIdentity identity;
  int64_t version = 0;
  uint64_t tensors_xxh3 = 0;
  int64_t tensors_bytes = 0;
  // A JSON object that the server defines. If the manifest was read from a
  // file, the object also has the fields above.
  std::string state;
};

// The text of manifest.json.
std::string EncodeCheckpointManifest(const CheckpointManifest& manifest);

// `path` names the file in errors.
// Errors: DataLoss (damaged); FailedPrecondition (written in another format).
absl::StatusOr<CheckpointManifest> DecodeCheckpointManifest(
    const std::string& path, const std::string& text);

// Reads and decodes the manifest of the checkpoint `path`.
// Errors: those of DecodeCheckpointManifest and FileSystem.
absl::StatusOr<CheckpointManifest> ReadCheckpointManifest(
    FileSystem& files, const std::string& path);

// Size and checksum of a tensor file as found.
struct TensorFileSum {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

// Checks whether the file is what was written; `path` is the tensor file's.
// Errors: DataLoss, with the value seen and the value wanted.
absl::Status CheckTensorFile(const std::string& path,
                             const CheckpointManifest& manifest,
                             const TensorFileSum& seen);

// Reads every byte of the checkpoint `path`, with little memory.
// Errors: DataLoss or NotFound, naming the file that is damaged or missing;
//   FailedPrecondition: written in another format, so that this release cannot
//   check it; those of FileSystem for a file that cannot be read.
absl::Status VerifyCheckpoint(FileSystem& files, const std::string& path);

}  // namespace cohort
