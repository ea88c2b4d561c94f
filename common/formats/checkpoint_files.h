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

// A checkpoint is a directory `checkpoint-<version>` (12 digits), or
// `checkpoint-<version>.<n>` (6 digits) where that version was written before,
// for nothing that may be the only whole checkpoint is ever replaced. It holds
//   state.safetensors  weights/<parameter> (float32),
//                      <slot>/<parameter> (float32) of those slots of the
//                      optimizer that there are, such as velocity,
//                      updates/<parameter> (int64, one a slice, adam only),
//                      statistics/<kind>/<layer>/mean|variance (float64)
//   manifest.json      everything else that a restart needs, XXH3-64 sums
//                      of the tensor file and of the manifest itself; its
//                      text is that of EncodeCheckpointManifest to the byte
// It is written under a temporary name, synced and renamed, so that it is
// there as a whole or not at all.
//
// Here is what everybody can tell of one: its name, whether its bytes are those
// that were written, and whose it is. What the state means is the server's.

inline constexpr char kCheckpointTensors[] = "state.safetensors";
inline constexpr char kCheckpointManifest[] = "manifest.json";
// Ample for any model; a larger file is damage, and is not read.
inline constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
// Begins the names of those that are being written, or that a crash left.
inline constexpr char kCheckpointTemporary[] = ".tmp-";

// What a checkpoint's directory is called. Ordered by age.
struct CheckpointName {
  int64_t version = 0;
  // Counts the checkpoints of one version.
  int64_t repetition = 0;

  friend auto operator<=>(const CheckpointName&,
                          const CheckpointName&) = default;

  std::string Text() const;
  // Nothing for names that are not ours, such as those of copies.
  static std::optional<CheckpointName> Parse(absl::string_view text);
};

// Those in `dir`, whole or not, in the order of age.
// Errors: those of FileSystem.
absl::StatusOr<std::vector<CheckpointName>> ListCheckpoints(
    FileSystem& files, const std::string& dir);

// Who a checkpoint's state belongs to.
struct RunIdentity {
  std::string run_id;
  uint64_t seed = 0;
  // That the process started with; for people. What is in force is in
  // RunState::settings.
  std::string policy;
  // What people call the run; empty in checkpoints of releases without names.
  std::string run_name;
};

struct CheckpointManifest {
  RunIdentity identity;
  int64_t version = 0;
  uint64_t tensors_xxh3 = 0;
  // Absent: it is of a release that did not note it.
  std::optional<int64_t> tensors_bytes;
  // A JSON object, the server's. Of a manifest that was read it has the fields
  // above, too.
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

// What a tensor file was found to hold.
struct TensorFileSum {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

// Whether that is what was written; `path` is the tensor file's.
// Errors: DataLoss, with what was seen and what was wanted.
absl::Status CheckTensorFile(const std::string& path,
                             const CheckpointManifest& manifest,
                             const TensorFileSum& seen);

// Reads every byte of the checkpoint `path`, with little memory.
// Errors: DataLoss or NotFound, naming the file that is damaged or missing;
//   FailedPrecondition: written in another format, so that nobody here can
//   tell; those of FileSystem for a file that cannot be read.
absl::Status VerifyCheckpoint(FileSystem& files, const std::string& path);

}  // namespace cohort
