#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::bench {

// Seconds of each synchronous step in which `workers` push `elements` float32
// gradients to one in-process server over loopback gRPC, which folds them,
// applies SGD and sends the weights back. Workers do no arithmetic and keep
// the received weights where they arrived.
absl::StatusOr<std::vector<double>> ExchangeStepSeconds(int32_t workers,
                                                        int64_t elements,
                                                        int32_t steps);

// Seconds of each rendezvous of two workers over `channels` channels
// (16 bytes a channel each way), as worker 0 sees it.
absl::StatusOr<std::vector<double>> RendezvousSeconds(int64_t channels,
                                                      int32_t rounds);

}  // namespace cohort::bench
