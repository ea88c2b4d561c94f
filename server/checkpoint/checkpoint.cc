#include "server/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/check.h"
#include "common/formats/safetensors.h"
#include "common/status_macros.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/model_tensors.h"
#include "server/core/optimizer/slots.h"

namespace cohort {
namespace {

constexpr int kFileMode = 0600;
constexpr int kDirectoryMode = 0700;
constexpr char kKeptState[] = "kept_state";
constexpr char kIndeterminatePayload[] = "cohort/checkpoint-indeterminate";

std::vector<SharedFloats> BuffersOf(const std::vector<Slots>& slots,
                                    const SlotKind& kind) {
  std::vector<SharedFloats> buffers;
  for (const Slots& one : slots) buffers.push_back(one.*kind.buffer);
  return buffers;
}

SafetensorsContent TensorsOf(const RunState& state) {
  const RegisteredModel& model = *state.model;
  SafetensorsContent content;
  const auto add = [&](const char* kind,
                       const std::vector<SharedFloats>& buffers) {
    const std::vector<ByteRope> ropes = ParameterRopes(model, buffers);
    for (size_t i = 0; i < ropes.size(); ++i) {
      if (ropes[i].size_bytes() == 0) continue;
      const ParameterSpec& p = model.layout.parameters[i];
      content.tensors.push_back({.name = absl::StrCat(kind, "/", p.name),
                                 .shape = p.shape,
                                 .bytes = ropes[i]});
    }
  };
  add("weights", state.snapshot->weights);
  for (const SlotKind& kind : AllSlots()) {
    add(kind.name, BuffersOf(state.snapshot->slots, kind));
  }
  if (state.kept_state != nullptr) {
    const std::string& bytes = *state.kept_state;
    content.tensors.push_back(
        {.name = kKeptState,
         .type = TensorType::kUint8,
         .shape = {static_cast<int64_t>(bytes.size())},
         .bytes = ByteRope(absl::MakeConstSpan(
                               reinterpret_cast<const std::byte*>(bytes.data()),
                               bytes.size()),
                           state.kept_state)});
  }
  return content;
}

TensorFileSum SumOf(const std::vector<ByteRope>& parts) {
  ByteRope whole;
  for (const ByteRope& part : parts) {
    for (const ByteRope::Piece& piece : part.pieces()) {
      whole.Append(piece.bytes, piece.owner);
    }
  }
  return {.bytes = whole.size_bytes(), .xxh3 = whole.Checksum()};
}

absl::Status RemoveTemporaries(FileSystem& files, const std::string& dir) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> entries,
                          files.List(dir));
  for (const std::string& entry : entries) {
    if (!absl::StartsWith(entry, kCheckpointTemporary)) continue;
    COHORT_RETURN_IF_ERROR(files.RemoveAll(absl::StrCat(dir, "/", entry)));
  }
  return absl::OkStatus();
}

absl::Status RemoveOlder(FileSystem& files, const std::string& dir,
                         int32_t keep, const CheckpointName& newest,
                         const std::vector<CheckpointName>& names,
                         const std::set<std::string>& damaged) {
  std::vector<std::string> whole;
  std::vector<std::string> removed;
  for (const CheckpointName& name : names) {
    if (name >= newest) continue;
    (damaged.contains(name.Text()) ? removed : whole).push_back(name.Text());
  }
  const auto kept = static_cast<size_t>(keep - 1);
  // Damaged ones are kept for inspection until there are enough others.
  if (whole.size() < kept) removed.clear();
  while (whole.size() > kept) {
    removed.push_back(whole.front());
    whole.erase(whole.begin());
  }
  for (const std::string& name : removed) {
    const absl::Status status = files.RemoveAll(absl::StrCat(dir, "/", name));
    if (status.ok()) continue;
    return absl::Status(
        status.code(),
        absl::StrCat(newest.Text(),
                     " is written, but an older one cannot be removed: ",
                     status.message()));
  }
  return absl::OkStatus();
}

absl::Status Indeterminate(absl::Status status) {
  status.SetPayload(kIndeterminatePayload, absl::Cord());
  return status;
}

// Writes the checkpoint's files, synced, into a new directory.
absl::Status WriteFiles(FileSystem& files, const std::string& dir,
                        const RunIdentity& identity, const RunState& state) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> tensors,
                          EncodeSafetensors(TensorsOf(state)));
  const std::string path = absl::StrCat(dir, "/", kCheckpointManifest);
  const std::string bytes = EncodeState(identity, state);
  // A state that could not be read back must not replace one that can.
  COHORT_RETURN_IF_ERROR(DecodeState(path, bytes).status());
  const std::string text =
      EncodeCheckpointManifest({.tensors = SumOf(tensors), .state = bytes});
  // A larger manifest could not be read again.
  if (static_cast<int64_t>(text.size()) > kManifestBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        path, ": got ", text.size(), " bytes, want at most ", kManifestBytesMax,
        "; a larger --partition_kib makes it smaller"));
  }
  const std::vector<ByteRope> manifest_bytes = {ByteRope::CopyText(text)};
  COHORT_RETURN_IF_ERROR(files.MakeDirectory(dir, kDirectoryMode));
  COHORT_RETURN_IF_ERROR(files.WriteFile(
      absl::StrCat(dir, "/", kCheckpointTensors), kFileMode, tensors));
  COHORT_RETURN_IF_ERROR(files.WriteFile(path, kFileMode, manifest_bytes));
  return files.SyncDirectory(dir);
}

using TensorMap = std::map<std::string, const NamedTensor*>;

// Ropes of one kind, one a parameter; an absent tensor gives an empty rope.
absl::StatusOr<std::vector<ByteRope>> RopesOf(const std::string& path,
                                              const RegisteredModel& model,
                                              const char* kind,
                                              const TensorMap& tensors) {
  std::vector<ByteRope> ropes;
  for (const ParameterSpec& p : model.layout.parameters) {
    const auto it = tensors.find(absl::StrCat(kind, "/", p.name));
    if (it == tensors.end()) {
      ropes.emplace_back();
      continue;
    }
    if (it->second->type != TensorType::kFloat32 ||
        it->second->shape != p.shape) {
      return absl::DataLossError(absl::StrCat(
          path, ": ", it->first, " differs from the model in type or shape"));
    }
    ropes.push_back(it->second->bytes);
  }
  return ropes;
}

// Adds the slots that were written, and checks the counts of updates against
// them.
absl::Status ReadSlots(const std::string& path, const RegisteredModel& model,
                       const TensorMap& tensors, std::vector<Slots>& slots) {
  for (const SlotKind& kind : AllSlots()) {
    COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> ropes,
                            RopesOf(path, model, kind.name, tensors));
    const std::vector<SharedFloats> buffers = PartitionBuffers(model, ropes);
    for (size_t p = 0; p < slots.size(); ++p) {
      slots[p].*kind.buffer = buffers[p];
    }
  }
  for (size_t p = 0; p < slots.size(); ++p) {
    const size_t slices = model.partitions[p].slices.size();
    if (!CountsUpdates(slots[p])) {
      slots[p].updates.clear();
    } else if (slots[p].updates.size() != slices) {
      return absl::DataLossError(absl::StrCat(
          path, ": updates of partition ", p, ": got ", slots[p].updates.size(),
          " numbers, want one for each of ", slices, " slices"));
    }
  }
  return absl::OkStatus();
}

// `state` with the weights and slots of `tensors`.
absl::StatusOr<SharedSnapshot> SnapshotFrom(const std::string& path,
                                            const RunState& state,
                                            const TensorMap& tensors) {
  const RegisteredModel& model = *state.model;
  auto snapshot = std::make_shared<ModelSnapshot>(*state.snapshot);
  COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> weights,
                          RopesOf(path, model, "weights", tensors));
  snapshot->weights = PartitionBuffers(model, weights);
  for (size_t p = 0; p < snapshot->weights.size(); ++p) {
    if (snapshot->weights[p] == nullptr) {
      return absl::DataLossError(
          absl::StrCat(path, ": weights of partition ", p, " are missing"));
    }
  }
  COHORT_RETURN_IF_ERROR(ReadSlots(path, model, tensors, snapshot->slots));
  return snapshot;
}

// The programs' state, where the manifest, which has made `state`, says that
// there is one.
absl::Status ReadKeptState(const std::string& path, const TensorMap& tensors,
                           RunState& state) {
  const auto found = tensors.find(kKeptState);
  if ((found != tensors.end()) != (state.kept_state != nullptr)) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", kKeptState, ": got ",
                     found == tensors.end() ? "none" : "one",
                     ", want what the manifest says"));
  }
  if (found == tensors.end()) return absl::OkStatus();
  state.kept_state =
      std::make_shared<const std::string>(found->second->bytes.ToString());
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> LoadWhole(FileSystem& files,
                                     const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                          ReadCheckpointManifest(files, path));
  COHORT_ASSIGN_OR_RETURN(
      Checkpoint checkpoint,
      DecodeState(absl::StrCat(path, "/", kCheckpointManifest),
                  manifest.state));
  checkpoint.path = path;
  const std::string tensor_path = absl::StrCat(path, "/", kCheckpointTensors);
  COHORT_ASSIGN_OR_RETURN(const ByteRope bytes,
                          files.ReadFile(tensor_path, manifest.tensors.bytes));
  COHORT_RETURN_IF_ERROR(
      CheckTensorFile(tensor_path, manifest.tensors,
                      {.bytes = bytes.size_bytes(), .xxh3 = bytes.Checksum()}));
  COHORT_ASSIGN_OR_RETURN(const SafetensorsContent content,
                          DecodeSafetensors(tensor_path, bytes));
  TensorMap tensors;
  for (const NamedTensor& tensor : content.tensors) {
    tensors[tensor.name] = &tensor;
  }
  COHORT_ASSIGN_OR_RETURN(checkpoint.state.snapshot,
                          SnapshotFrom(tensor_path, checkpoint.state, tensors));
  COHORT_RETURN_IF_ERROR(ReadKeptState(tensor_path, tensors, checkpoint.state));
  return checkpoint;
}

absl::StatusOr<Checkpoint> Load(FileSystem& files, const std::string& path) {
  try {
    return LoadWhole(files, path);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": not enough memory to load it"));
  }
}

// False if the checkpoint may be intact but this process cannot read it.
bool IsDamage(const absl::Status& status) {
  return status.code() != absl::StatusCode::kFailedPrecondition &&
         status.code() != absl::StatusCode::kPermissionDenied &&
         status.code() != absl::StatusCode::kResourceExhausted;
}

}  // namespace

absl::Status WriteCheckpoint(FileSystem& files, const std::string& dir,
                             int32_t keep, const RunIdentity& identity,
                             const RunState& state,
                             const std::set<std::string>& damaged) {
  COHORT_CHECK(keep >= 1, absl::StrCat("got ", keep, " to keep"));
  // Temporaries go first, because they may take the space that this checkpoint
  // needs.
  COHORT_RETURN_IF_ERROR(RemoveTemporaries(files, dir));
  COHORT_ASSIGN_OR_RETURN(const std::vector<CheckpointName> names,
                          ListCheckpoints(files, dir));
  CheckpointName name{.version = state.snapshot->version.value()};
  for (const CheckpointName& other : names) {
    if (other.version != name.version) continue;
    name.repetition = other.repetition + 1;
  }
  const std::string final_path = absl::StrCat(dir, "/", name.Text());
  const std::string temporary =
      absl::StrCat(dir, "/", kCheckpointTemporary, name.Text());
  const absl::Status written = WriteFiles(files, temporary, identity, state);
  if (!written.ok()) {
    // The first error names the cause.
    files.RemoveAll(temporary).IgnoreError();
    return written;
  }
  absl::Status placed = files.Rename(temporary, final_path);
  if (placed.ok()) placed = files.SyncDirectory(dir);
  if (!placed.ok()) return Indeterminate(std::move(placed));
  return RemoveOlder(files, dir, keep, name, names, damaged);
}

bool IsIndeterminate(const absl::Status& write) {
  return write.GetPayload(kIndeterminatePayload).has_value();
}

absl::StatusOr<std::optional<Checkpoint>> LoadNewestCheckpoint(
    FileSystem& files, const std::string& dir,
    std::vector<std::string>& problems) {
  COHORT_ASSIGN_OR_RETURN(std::vector<CheckpointName> names,
                          ListCheckpoints(files, dir));
  std::reverse(names.begin(), names.end());
  std::set<std::string> damaged;
  for (const CheckpointName& name : names) {
    absl::StatusOr<Checkpoint> checkpoint =
        Load(files, absl::StrCat(dir, "/", name.Text()));
    if (checkpoint.ok()) {
      checkpoint->damaged = std::move(damaged);
      return *std::move(checkpoint);
    }
    if (!IsDamage(checkpoint.status())) return checkpoint.status();
    damaged.insert(name.Text());
    problems.emplace_back(checkpoint.status().message());
  }
  if (names.empty()) return std::nullopt;
  return absl::DataLossError(
      absl::StrCat(dir, ": none of ", names.size(),
                   " checkpoints is whole; the newest: ", problems.front()));
}

int64_t NewestCheckpointBytes(FileSystem& files, const std::string& dir) {
  const absl::StatusOr<std::vector<CheckpointName>> names =
      ListCheckpoints(files, dir);
  if (!names.ok() || names->empty()) return 0;
  std::error_code error;
  const std::filesystem::path newest =
      std::filesystem::path(dir) / names->back().Text();
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(newest, error)) {
    const uintmax_t size = entry.file_size(error);
    // The file may have been removed by now.
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

bool HoldsCheckpoints(FileSystem& files, const std::string& dir) {
  const absl::StatusOr<std::vector<CheckpointName>> names =
      ListCheckpoints(files, dir);
  return names.ok() && !names->empty();
}

}  // namespace cohort
