#pragma once

#include <string>
#include <vector>

#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/formats/file_system.h"
#include "common/formats/safetensors.h"
#include "server/core/events/effects.h"

namespace cohort {

// One rope a parameter, referencing the bytes in the partitions. Parameters
// whose partitions are null (no such slot) get an empty rope.
std::vector<ByteRope> ParameterRopes(const RegisteredModel& model,
                                     const std::vector<SharedFloats>& buffers);

// The reverse: fills partitions from one rope a parameter. A partition is null
// if its parameters have no ropes. Sizes must match.
std::vector<SharedFloats> PartitionBuffers(const RegisteredModel& model,
                                           const std::vector<ByteRope>& ropes);

// The model in PyTorch's state-dict names. Parameters keep their names. Each
// layer with statistics gets those of the first kind: running_mean, running_var
// (float32) and num_batches_tracked (int64, no dimensions).
SafetensorsContent StateDict(const RegisteredModel& model,
                             const ModelSnapshot& snapshot);

// Writes model.safetensors atomically.
// Errors: those of FileSystem.
absl::Status WriteModel(FileSystem& files, const std::string& path,
                        const RegisteredModel& model,
                        const ModelSnapshot& snapshot);

}  // namespace cohort
