#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::bench {

// The speed of the machine without any protocol: plain sockets on loopback,
// TCP_NODELAY, blocking calls, one thread for each end.

// Seconds a round in which each of `workers` peers sends `bytes` to one server
// and gets as many back, all at the same time; median of `rounds`.
absl::StatusOr<double> TcpExchangeSeconds(int32_t workers, int64_t bytes,
                                          int32_t rounds);

// Seconds of each of `rounds` exchanges of `bytes` between `workers` peers
// through one server, which answers all once all have sent.
absl::StatusOr<std::vector<double>> TcpRendezvousSeconds(int32_t workers,
                                                         int64_t bytes,
                                                         int32_t rounds);

// Seconds to copy `bytes` once from memory to memory; median of `rounds`.
double MemcpySeconds(int64_t bytes, int32_t rounds);

// The q-quantile (0..1) of `values`, nearest rank.
double Quantile(std::vector<double> values, double q);

}  // namespace cohort::bench
