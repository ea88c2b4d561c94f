#pragma once

#include "absl/status/status.h"
#include "server/checkpoint/checkpoint.h"

namespace cohort {

// Checks whether a run can continue from `state`, whose layout and partitions
// fit. Every number is checked as if it had come over the network, because a
// checksum proves only that the file is the one that was written.
// Errors: InvalidArgument naming the field, the value seen and the one wanted.
absl::Status CheckState(const RunIdentity& identity, const RunState& state);

}  // namespace cohort
