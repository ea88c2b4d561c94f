#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint.h"

namespace cohort {

// A set of moving statistics without its tensors.
struct KeptSet {
  StatisticsKind kind = StatisticsKind::kSync;
  // By layer.
  std::vector<int64_t> batches_tracked;
  std::optional<Version> collected;
};

// Everything of a checkpoint that is not a tensor.
struct Manifest {
  RunIdentity identity;
  // Without snapshot tensors, which are in the tensor file.
  RunState state;
  Version version;
  // In the order in which the run keeps them; at least one.
  std::vector<KeptSet> statistics;
  TensorFileSum tensors;
  // As in ModelSnapshot.
  SharedText front_end_state;
};

// The text of manifest.json.
std::string EncodeManifest(const Manifest& manifest);

// `path` names the file in errors. Layout and partitions are valid and fit.
// Errors: DataLoss (damaged).
absl::StatusOr<Manifest> DecodeManifest(const std::string& path,
                                        const CheckpointManifest& read);

}  // namespace cohort
