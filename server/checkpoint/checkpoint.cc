#include "server/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/formats/safetensors.h"
#include "common/status_macros.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/model_tensors.h"

namespace cohort {
namespace {

constexpr char kPrefix[] = "checkpoint-";
constexpr char kTemporaryPrefix[] = ".tmp-checkpoint-";
constexpr char kTensorFile[] = "state.safetensors";
constexpr char kManifestFile[] = "manifest.json";
constexpr int kFileMode = 0600;
constexpr int kDirectoryMode = 0700;

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
  add("velocity", state.snapshot->velocities);
  for (size_t i = 0; i < model.layout.batch_norms.size(); ++i) {
    const std::string& name = model.layout.batch_norms[i].name;
    const LayerStatistics& s = (*state.snapshot->statistics)[i];
    content.tensors.push_back(
        Float64Tensor(absl::StrCat("statistics/", name, "/mean"), s.mean));
    content.tensors.push_back(Float64Tensor(
        absl::StrCat("statistics/", name, "/variance"), s.variance));
  }
  return content;
}

uint64_t ChecksumOf(const std::vector<ByteRope>& parts) {
  ByteRope whole;
  for (const ByteRope& part : parts) {
    for (const ByteRope::Piece& piece : part.pieces()) {
      whole.Append(piece.bytes, piece.owner);
    }
  }
  return whole.Checksum();
}

absl::StatusOr<std::vector<std::string>> Checkpoints(FileSystem& files,
                                                     const std::string& dir) {
  COHORT_ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(dir));
  std::erase_if(names, [](const std::string& name) {
    return !absl::StartsWith(name, kPrefix);
  });
  return names;
}

absl::Status RemoveOld(FileSystem& files, const std::string& dir,
                       int32_t keep) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          files.List(dir));
  std::vector<std::string> kept;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kTemporaryPrefix)) {
      COHORT_RETURN_IF_ERROR(files.RemoveAll(absl::StrCat(dir, "/", name)));
    } else if (absl::StartsWith(name, kPrefix)) {
      kept.push_back(name);
    }
  }
  for (size_t i = 0; i + static_cast<size_t>(keep) < kept.size(); ++i) {
    COHORT_RETURN_IF_ERROR(files.RemoveAll(absl::StrCat(dir, "/", kept[i])));
  }
  return absl::OkStatus();
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
          path, ": ", it->first, " has another type or shape than the model"));
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
        path, ": ", name, " is missing or has another type or shape"));
  }
  std::vector<double> values(static_cast<size_t>(channels));
  it->second->bytes.CopyTo(absl::MakeSpan(
      reinterpret_cast<std::byte*>(values.data()),
      values.size() * sizeof(double)));
  return values;
}

absl::StatusOr<SharedSnapshot> SnapshotFrom(const std::string& path,
                                            const Manifest& manifest,
                                            const TensorMap& tensors) {
  const RegisteredModel& model = *manifest.state.model;
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->version = manifest.version;
  COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> weights,
                          RopesOf(path, model, "weights", tensors));
  COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> velocities,
                          RopesOf(path, model, "velocity", tensors));
  snapshot->weights = PartitionBuffers(model, weights);
  snapshot->velocities = PartitionBuffers(model, velocities);
  for (size_t p = 0; p < snapshot->weights.size(); ++p) {
    if (snapshot->weights[p] == nullptr) {
      return absl::DataLossError(
          absl::StrCat(path, ": weights of partition ", p, " are missing"));
    }
    snapshot->checksums.push_back(RopeOf(snapshot->weights[p]).Checksum());
  }
  std::vector<LayerStatistics> statistics;
  for (size_t i = 0; i < model.layout.batch_norms.size(); ++i) {
    const BatchNormSpec& bn = model.layout.batch_norms[i];
    LayerStatistics layer;
    COHORT_ASSIGN_OR_RETURN(
        layer.mean,
        DoublesOf(path, absl::StrCat("statistics/", bn.name, "/mean"),
                  bn.channels, tensors));
    COHORT_ASSIGN_OR_RETURN(
        layer.variance,
        DoublesOf(path, absl::StrCat("statistics/", bn.name, "/variance"),
                  bn.channels, tensors));
    layer.num_batches_tracked = manifest.batches_tracked.at(i);
    statistics.push_back(std::move(layer));
  }
  snapshot->statistics = std::make_shared<const std::vector<LayerStatistics>>(
      std::move(statistics));
  return snapshot;
}

absl::StatusOr<Checkpoint> Load(FileSystem& files, const std::string& path) {
  const std::string manifest_path = absl::StrCat(path, "/", kManifestFile);
  const std::string tensor_path = absl::StrCat(path, "/", kTensorFile);
  COHORT_ASSIGN_OR_RETURN(const ByteRope text, files.ReadFile(manifest_path));
  COHORT_ASSIGN_OR_RETURN(Manifest manifest,
                          DecodeManifest(manifest_path, text.ToString()));
  COHORT_ASSIGN_OR_RETURN(const ByteRope bytes, files.ReadFile(tensor_path));
  if (bytes.Checksum() != manifest.tensors_xxh3) {
    return absl::DataLossError(absl::StrCat(
        tensor_path, ": checksum: got ", absl::Hex(bytes.Checksum()),
        ", want ", absl::Hex(manifest.tensors_xxh3)));
  }
  if (manifest.batches_tracked.size() !=
      manifest.state.model->layout.batch_norms.size()) {
    return absl::DataLossError(
        absl::StrCat(manifest_path, ": batches_tracked does not fit"));
  }
  COHORT_RETURN_IF_ERROR(Validate(manifest.state.model->layout));
  COHORT_ASSIGN_OR_RETURN(const SafetensorsContent content,
                          DecodeSafetensors(tensor_path, bytes));
  TensorMap tensors;
  for (const NamedTensor& tensor : content.tensors) {
    tensors[tensor.name] = &tensor;
  }
  Checkpoint checkpoint{.identity = manifest.identity,
                        .state = manifest.state,
                        .path = path};
  COHORT_ASSIGN_OR_RETURN(checkpoint.state.snapshot,
                          SnapshotFrom(tensor_path, manifest, tensors));
  return checkpoint;
}

}  // namespace

absl::Status WriteCheckpoint(FileSystem& files, const std::string& dir,
                             int32_t keep, const RunIdentity& identity,
                             const RunState& state) {
  const std::string digits =
      absl::StrFormat("%012d", state.snapshot->version.value());
  const std::string temporary = absl::StrCat(dir, "/", kTemporaryPrefix, digits);
  const std::string final_path = absl::StrCat(dir, "/", kPrefix, digits);
  COHORT_ASSIGN_OR_RETURN(const std::vector<ByteRope> tensors,
                          EncodeSafetensors(TensorsOf(state)));
  Manifest manifest{.identity = identity,
                    .state = state,
                    .version = state.snapshot->version,
                    .tensors_xxh3 = ChecksumOf(tensors)};
  for (const LayerStatistics& layer : *state.snapshot->statistics) {
    manifest.batches_tracked.push_back(layer.num_batches_tracked);
  }
  const std::string text = EncodeManifest(manifest);
  const std::vector<ByteRope> manifest_bytes = {
      ByteRope::Copy(absl::MakeConstSpan(
          reinterpret_cast<const std::byte*>(text.data()), text.size()))};

  COHORT_RETURN_IF_ERROR(files.RemoveAll(temporary));
  COHORT_RETURN_IF_ERROR(files.MakeDirectory(temporary, kDirectoryMode));
  COHORT_RETURN_IF_ERROR(files.WriteFile(
      absl::StrCat(temporary, "/", kTensorFile), kFileMode, tensors));
  COHORT_RETURN_IF_ERROR(files.WriteFile(
      absl::StrCat(temporary, "/", kManifestFile), kFileMode,
      manifest_bytes));
  COHORT_RETURN_IF_ERROR(files.SyncDirectory(temporary));
  // A checkpoint of this version from before a restart: the same content, or
  // a damaged one.
  COHORT_RETURN_IF_ERROR(files.RemoveAll(final_path));
  COHORT_RETURN_IF_ERROR(files.Rename(temporary, final_path));
  COHORT_RETURN_IF_ERROR(files.SyncDirectory(dir));
  return RemoveOld(files, dir, keep);
}

absl::StatusOr<std::optional<Checkpoint>> LoadNewestCheckpoint(
    FileSystem& files, const std::string& dir,
    std::vector<std::string>& problems) {
  COHORT_ASSIGN_OR_RETURN(std::vector<std::string> names,
                          Checkpoints(files, dir));
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) {
    absl::StatusOr<Checkpoint> checkpoint =
        Load(files, absl::StrCat(dir, "/", name));
    if (checkpoint.ok()) return *std::move(checkpoint);
    problems.emplace_back(checkpoint.status().message());
  }
  if (names.empty()) return std::nullopt;
  return absl::DataLossError(
      absl::StrCat(dir, ": none of ", names.size(),
                   " checkpoints is whole; the newest: ", problems.front()));
}

bool HoldsCheckpoints(FileSystem& files, const std::string& dir) {
  const absl::StatusOr<std::vector<std::string>> names =
      Checkpoints(files, dir);
  return names.ok() && !names->empty();
}

}  // namespace cohort
