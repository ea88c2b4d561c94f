#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::bench {

// The speed of the machine without any protocol: plain sockets on loopback,
// TCP_NODELAY, blocking calls, one thread for each end.

// Seconds of each of `rounds` in which each of `workers` peers sends `bytes` to
// one server and gets as many back, all at the same time.
absl::StatusOr<std::vector<double>> TcpExchangeSeconds(int32_t workers,
                                                       int64_t bytes,
                                                       int32_t rounds);

// Seconds of each of `rounds` exchanges of `bytes` between `workers` peers
// through one server, which answers all once all have sent.
absl::StatusOr<std::vector<double>> TcpRendezvousSeconds(int32_t workers,
                                                         int64_t bytes,
                                                         int32_t rounds);

// Seconds of each of `rounds` copies of `bytes` from memory to memory.
std::vector<double> CopySeconds(int64_t bytes, int32_t rounds);

// The q-quantile (0..1) of `values`, nearest rank.
double Quantile(std::vector<double> values, double q);

}  // namespace cohort::bench
