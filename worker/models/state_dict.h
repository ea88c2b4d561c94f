#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/formats/file_system.h"
#include "worker/models/model.h"

namespace cohort {

// Overwrites the model's parameters and buffers, including batch norm's moving
// statistics, with those of a safetensors file that has PyTorch's state-dict
// names, such as the model.safetensors of a run. Everything is checked before
// anything is written.
//
// Counters (num_batches_tracked) may be missing, as in old checkpoints; they
// keep their value. Every other tensor must be there with the model's shape and
// type, and the file may have no further tensor.
// Errors: those of FileSystem::ReadFile and DecodeSafetensors;
//   InvalidArgument with the names that are missing, unknown, of another shape
//   or type, or not finite.
absl::Status LoadStateDict(FileSystem& files, const std::string& path,
                           Model& model);

}  // namespace cohort
