#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint.h"

namespace cohort {

// The state in a manifest: everything that is not a tensor, as a
// cohort.v1.RunState.
std::string EncodeState(const RunIdentity& identity, const RunState& state);

// `path` names the file in errors. The snapshot of the result is without
// weights and slots, but has the counts of updates.
// Errors: DataLoss: damaged, or a run cannot continue from it;
//   FailedPrecondition: written by a newer release.
absl::StatusOr<Checkpoint> DecodeState(const std::string& path,
                                       const std::string& bytes);

}  // namespace cohort
