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
//                      optimizer that there are, such as velocity
//   manifest           a line, and after it everything else that a restart
//                      needs, as a cohort.v1.RunState
// The line is
//   cohort-checkpoint <format> <bytes of the tensor file> <its XXH3-64> <sum>
// with the sums in hexadecimal. The last one is the XXH3-64 of the manifest
// without this sum, so it covers every byte. It is compared before anything
// else is read: a message that was cut where a field ends is another valid
// message. Later formats keep the line, so that each release recognises them.
//
// A checkpoint is written under a temporary name, synced and renamed, so that
// it either exists as a whole or not at all.
//
// This file covers what can be known without the server's code: a checkpoint's
// name, and whether its bytes are those that were written. Only the server
// interprets the state.

inline constexpr char kCheckpointTensors[] = "state.safetensors";
inline constexpr char kCheckpointManifest[] = "manifest";
// What protobuf can read; a larger file is damaged and is not read.
inline constexpr int64_t kManifestBytesMax = INT32_MAX;
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

// Size and checksum of a tensor file.
struct TensorFileSum {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

struct CheckpointManifest {
  TensorFileSum tensors;
  // Bytes that the server defines.
  std::string state;
};

// The bytes of the manifest.
std::string EncodeCheckpointManifest(const CheckpointManifest& manifest);

// `path` names the file in errors.
// Errors: DataLoss (damaged); FailedPrecondition (written in another format).
absl::StatusOr<CheckpointManifest> DecodeCheckpointManifest(
    const std::string& path, absl::string_view text);

// Reads and decodes the manifest of the checkpoint `path`.
// Errors: those of DecodeCheckpointManifest and FileSystem.
absl::StatusOr<CheckpointManifest> ReadCheckpointManifest(
    FileSystem& files, const std::string& path);

// Checks whether the file is what was written; `path` is the tensor file's.
// Errors: DataLoss, with the value seen and the value wanted.
absl::Status CheckTensorFile(const std::string& path,
                             const TensorFileSum& wanted,
                             const TensorFileSum& seen);

// Reads every byte of the checkpoint `path`, with little memory.
// Errors: DataLoss or NotFound, naming the file that is damaged or missing;
//   FailedPrecondition: written in another format, so that this release cannot
//   check it; those of FileSystem for a file that cannot be read.
absl::Status VerifyCheckpoint(FileSystem& files, const std::string& path);

}  // namespace cohort
