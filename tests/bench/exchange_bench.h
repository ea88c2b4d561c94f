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

// A rendezvous of two workers over `channels` channels (16 bytes a channel each
// way), or several that are contributed to together.
struct RendezvousShape {
  int64_t channels = 0;
  int32_t together = 1;
  // Timed ones.
  int32_t rounds = 0;
};

// Seconds of each wait, as worker 0 sees it.
absl::StatusOr<std::vector<double>> RendezvousSeconds(
    const RendezvousShape& shape);

}  // namespace cohort::bench
