#pragma once

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "server/core/step/round.h"

namespace cohort {

// Errors: FailedPrecondition: the step of `key` is in the future.
absl::Status CheckStep(const ReduceKey& key, Rank rank, Version newest);

// Whether `rank` may contribute these moments to the rendezvous of `key`, whose
// step is not over.
// Errors: FailedPrecondition (another step or attempt, no member),
//   InvalidArgument (malformed), ResourceExhausted (the rank waits in, or holds
//   moments of, too many calls).
absl::Status CheckReduce(const Round& round,
                         const std::vector<BatchNormSpec>& layers, Rank rank,
                         const ReduceKey& key, const Moments& moments);

}  // namespace cohort
