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
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/checksum.h"
#include "common/formats/safetensors.h"
#include "common/status_macros.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/model_tensors.h"
#include "server/checkpoint/state_checks.h"
#include "server/core/optimizer/slots.h"

namespace cohort {
namespace {

constexpr char kUpdates[] = "updates";
constexpr int kFileMode = 0600;
constexpr int kDirectoryMode = 0700;
constexpr char kIndeterminatePayload[] = "cohort/checkpoint-indeterminate";

std::string StatisticsPath(StatisticsKind kind, const BatchNormSpec& layer) {
  return absl::StrCat("statistics/", StatisticsName(kind), "/", layer.name);
}

std::vector<SharedFloats> BuffersOf(const std::vector<Slots>& slots,
                                    const SlotKind& kind) {
  std::vector<SharedFloats> buffers;
  for (const Slots& one : slots) buffers.push_back(one.*kind.buffer);
  return buffers;
}

// How often each parameter was updated, one number a slice, because slices are
// skipped one by one.
void AddUpdates(const RegisteredModel& model, const std::vector<Slots>& slots,
                SafetensorsContent& content) {
  std::vector<std::vector<int64_t>> updates(model.layout.parameters.size());
  for (size_t p = 0; p < slots.size(); ++p) {
    for (size_t i = 0; i < slots[p].updates.size(); ++i) {
      const Slice& slice = model.partitions[p].slices[i];
      updates[static_cast<size_t>(slice.parameter)].push_back(
          slots[p].updates[i]);
    }
  }
  for (size_t k = 0; k < updates.size(); ++k) {
    if (updates[k].empty()) continue;
    content.tensors.push_back(
        {.name = absl::StrCat(kUpdates, "/", model.layout.parameters[k].name),
         .type = TensorType::kInt64,
         .shape = {static_cast<int64_t>(updates[k].size())},
         .bytes = ByteRope::Copy(absl::MakeConstSpan(
             reinterpret_cast<const std::byte*>(updates[k].data()),
             updates[k].size() * sizeof(int64_t)))});
  }
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
  AddUpdates(model, state.snapshot->slots, content);
  for (const StatisticsSet& set : *state.snapshot->statistics) {
    for (size_t i = 0; i < set.layers.size(); ++i) {
      const std::string name =
          StatisticsPath(set.kind, model.layout.batch_norms[i]);
      content.tensors.push_back(
          Float64Tensor(absl::StrCat(name, "/mean"), set.layers[i].mean));
      content.tensors.push_back(Float64Tensor(absl::StrCat(name, "/variance"),
                                              set.layers[i].variance));
    }
  }
  return content;
}

TensorFileSum SumOf(const std::vector<ByteRope>& parts) {
  TensorFileSum sum;
  StreamingXxh3 checksum;
  for (const ByteRope& part : parts) {
    for (const ByteRope::Piece& piece : part.pieces()) {
      checksum.Update(piece.bytes);
    }
    sum.bytes += part.size_bytes();
  }
  sum.xxh3 = checksum.Digest();
  return sum;
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
  Manifest manifest{.identity = identity,
                    .state = state,
                    .version = state.snapshot->version,
                    .tensors = SumOf(tensors),
                    .front_end_state = state.snapshot->front_end_state};
  for (const StatisticsSet& set : *state.snapshot->statistics) {
    KeptSet kept{.kind = set.kind, .collected = set.collected};
    for (const LayerStatistics& layer : set.layers) {
      kept.batches_tracked.push_back(layer.num_batches_tracked);
    }
    manifest.statistics.push_back(std::move(kept));
  }
  const std::string text = EncodeManifest(manifest);
  // A larger manifest could not be read again.
  if (static_cast<int64_t>(text.size()) > kManifestBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(dir, "/", kCheckpointManifest, ": got ", text.size(),
                     " bytes, want at most ", kManifestBytesMax,
                     "; a larger --partition_kib makes it smaller"));
  }
  const std::vector<ByteRope> manifest_bytes = {ByteRope::CopyText(text)};
  COHORT_RETURN_IF_ERROR(files.MakeDirectory(dir, kDirectoryMode));
  COHORT_RETURN_IF_ERROR(files.WriteFile(
      absl::StrCat(dir, "/", kCheckpointTensors), kFileMode, tensors));
  COHORT_RETURN_IF_ERROR(files.WriteFile(
      absl::StrCat(dir, "/", kCheckpointManifest), kFileMode, manifest_bytes));
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

absl::StatusOr<std::vector<double>> DoublesOf(const std::string& path,
                                              const std::string& name,
                                              int64_t channels,
                                              const TensorMap& tensors) {
  const auto it = tensors.find(name);
  if (it == tensors.end() || it->second->type != TensorType::kFloat64 ||
      it->second->shape != std::vector<int64_t>{channels}) {
    return absl::DataLossError(absl::StrCat(
        path, ": ", name, " is missing or has the wrong type or shape"));
  }
  std::vector<double> values(static_cast<size_t>(channels));
  it->second->bytes.CopyTo(
      absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()),
                     values.size() * sizeof(double)));
  return values;
}

absl::StatusOr<StatisticsSet> SetFrom(const std::string& path,
                                      const RegisteredModel& model,
                                      const KeptSet& kept,
                                      const TensorMap& tensors) {
  StatisticsSet set{.kind = kept.kind, .collected = kept.collected};
  for (size_t i = 0; i < model.layout.batch_norms.size(); ++i) {
    const BatchNormSpec& bn = model.layout.batch_norms[i];
    const std::string name = StatisticsPath(kept.kind, bn);
    LayerStatistics layer;
    COHORT_ASSIGN_OR_RETURN(
        layer.mean,
        DoublesOf(path, absl::StrCat(name, "/mean"), bn.channels, tensors));
    COHORT_ASSIGN_OR_RETURN(
        layer.variance,
        DoublesOf(path, absl::StrCat(name, "/variance"), bn.channels, tensors));
    layer.num_batches_tracked = kept.batches_tracked.at(i);
    set.layers.push_back(std::move(layer));
  }
  return set;
}

// By parameter; empty where no counts were written.
absl::StatusOr<std::vector<std::vector<int64_t>>> UpdatesOf(
    const std::string& path, const RegisteredModel& model,
    const TensorMap& tensors) {
  std::vector<std::vector<int64_t>> updates;
  for (const ParameterSpec& p : model.layout.parameters) {
    std::vector<int64_t>& counts = updates.emplace_back();
    const auto it = tensors.find(absl::StrCat(kUpdates, "/", p.name));
    if (it == tensors.end()) continue;
    if (it->second->type != TensorType::kInt64) {
      return absl::DataLossError(
          absl::StrCat(path, ": ", it->first, " has the wrong type"));
    }
    counts.resize(static_cast<size_t>(it->second->bytes.size_bytes()) /
                  sizeof(int64_t));
    it->second->bytes.CopyTo(
        absl::MakeSpan(reinterpret_cast<std::byte*>(counts.data()),
                       counts.size() * sizeof(int64_t)));
  }
  return updates;
}

absl::Status ReadUpdates(const std::string& path, const RegisteredModel& model,
                         const TensorMap& tensors, std::vector<Slots>& slots) {
  COHORT_ASSIGN_OR_RETURN(const auto updates, UpdatesOf(path, model, tensors));
  // How many slices of each parameter have been read.
  std::vector<size_t> done(updates.size());
  for (size_t p = 0; p < slots.size(); ++p) {
    if (!CountsUpdates(slots[p])) continue;
    for (const Slice& slice : model.partitions[p].slices) {
      const auto k = static_cast<size_t>(slice.parameter);
      if (done[k] >= updates[k].size()) {
        return absl::DataLossError(absl::StrCat(
            path, ": ", kUpdates, "/", model.layout.parameters[k].name,
            ": got ", updates[k].size(), " numbers, want one per slice"));
      }
      slots[p].updates.push_back(updates[k][done[k]++]);
    }
  }
  return absl::OkStatus();
}

// Slots that were not written are null.
absl::StatusOr<std::vector<Slots>> SlotsFrom(const std::string& path,
                                             const RegisteredModel& model,
                                             const TensorMap& tensors) {
  std::vector<Slots> slots(model.partitions.size());
  for (const SlotKind& kind : AllSlots()) {
    COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> ropes,
                            RopesOf(path, model, kind.name, tensors));
    const std::vector<SharedFloats> buffers = PartitionBuffers(model, ropes);
    for (size_t p = 0; p < slots.size(); ++p) {
      slots[p].*kind.buffer = buffers[p];
    }
  }
  COHORT_RETURN_IF_ERROR(ReadUpdates(path, model, tensors, slots));
  return slots;
}

absl::StatusOr<SharedSnapshot> SnapshotFrom(const std::string& path,
                                            const Manifest& manifest,
                                            const TensorMap& tensors) {
  const RegisteredModel& model = *manifest.state.model;
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->version = manifest.version;
  snapshot->front_end_state = manifest.front_end_state;
  COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> weights,
                          RopesOf(path, model, "weights", tensors));
  snapshot->weights = PartitionBuffers(model, weights);
  COHORT_ASSIGN_OR_RETURN(snapshot->slots, SlotsFrom(path, model, tensors));
  for (size_t p = 0; p < snapshot->weights.size(); ++p) {
    if (snapshot->weights[p] == nullptr) {
      return absl::DataLossError(
          absl::StrCat(path, ": weights of partition ", p, " are missing"));
    }
  }
  StatisticsSets statistics;
  for (const KeptSet& kept : manifest.statistics) {
    COHORT_ASSIGN_OR_RETURN(StatisticsSet set,
                            SetFrom(path, model, kept, tensors));
    statistics.push_back(std::move(set));
  }
  snapshot->statistics =
      std::make_shared<const StatisticsSets>(std::move(statistics));
  return snapshot;
}

absl::StatusOr<Checkpoint> LoadWhole(FileSystem& files,
                                     const std::string& path) {
  const std::string tensor_path = absl::StrCat(path, "/", kCheckpointTensors);
  COHORT_ASSIGN_OR_RETURN(const CheckpointManifest read,
                          ReadCheckpointManifest(files, path));
  COHORT_ASSIGN_OR_RETURN(
      Manifest manifest,
      DecodeManifest(absl::StrCat(path, "/", kCheckpointManifest), read));
  COHORT_ASSIGN_OR_RETURN(const ByteRope bytes,
                          files.ReadFile(tensor_path, read.tensors_bytes));
  COHORT_RETURN_IF_ERROR(
      CheckTensorFile(tensor_path, read,
                      {.bytes = bytes.size_bytes(), .xxh3 = bytes.Checksum()}));
  COHORT_ASSIGN_OR_RETURN(const SafetensorsContent content,
                          DecodeSafetensors(tensor_path, bytes));
  TensorMap tensors;
  for (const NamedTensor& tensor : content.tensors) {
    tensors[tensor.name] = &tensor;
  }
  Checkpoint checkpoint{
      .identity = manifest.identity, .state = manifest.state, .path = path};
  COHORT_ASSIGN_OR_RETURN(checkpoint.state.snapshot,
                          SnapshotFrom(tensor_path, manifest, tensors));
  COHORT_RETURN_IF_ERROR(
      CheckRestored(path, checkpoint.identity, checkpoint.state));
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
  // A state that could not be read back must not replace one that can.
  COHORT_RETURN_IF_ERROR(CheckRestored(final_path, identity, state));
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
    // The file may have been removed meanwhile.
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
