#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/formats/checkpoint_files.h"
#include "server/core/events/effects.h"

namespace cohort {

// Checks whether a run can continue from what was read. Every number is checked
// as if it had come over the network, because a checksum proves only that the
// file is the one that was written. `state` is complete, and its layout and
// partitions fit. `path` names the checkpoint in errors.
// Errors: DataLoss naming the field, the value seen and the one wanted.
absl::Status CheckRestored(const std::string& path, const RunIdentity& identity,
                           const RunState& state);

}  // namespace cohort
