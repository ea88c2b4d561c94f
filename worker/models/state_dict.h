#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/formats/file_system.h"
#include "worker/models/model.h"

namespace cohort {

// Overwrites the model's parameters and buffers, batch norm's moving
// statistics among them, by those of a safetensors file with PyTorch's
// state-dict names, such as the model.safetensors of a run. Everything is
// checked before anything is written.
//
// Counters (num_batches_tracked) may be missing, as in old checkpoints; they
// keep their value. Everything else must be there, in its shape and type, and
// nothing that the model does not have.
// Errors: those of FileSystem::ReadFile and DecodeSafetensors;
//   InvalidArgument with the names that are missing, unknown, of another shape
//   or type, or not finite.
absl::Status LoadStateDict(FileSystem& files, const std::string& path,
                           Model& model);

}  // namespace cohort
