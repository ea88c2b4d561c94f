#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/security/tls_files.h"

namespace cohort::bench {

// Server and workers are separate processes, as in use.
struct Served {
  // The path of a cohort-server; if empty, the one beside this program.
  std::string program;
  // Certificates; empty: plaintext.
  TlsFiles server_tls;
  TlsFiles worker_tls;
  // How gradients and weights travel: tcp or shm.
  std::string local = "tcp";
  // The server's, with its defaults; sgd without weight decay.
  std::string optimizer = "sgd";
  // How they are encoded: float32 or bf16.
  std::string wire = "float32";
};

// Seconds of each synchronous step in which `workers` push `elements` float32
// gradients to one server over loopback gRPC, which folds them, applies the
// optimizer and sends the weights back. Workers do no arithmetic and do not
// copy the received weights.
absl::StatusOr<std::vector<double>> ExchangeStepSeconds(const Served& server,
                                                        int32_t workers,
                                                        int64_t elements,
                                                        int32_t steps);

// A rendezvous of two workers over `channels` channels (16 bytes a channel each
// way), or several that are contributed to together.
struct RendezvousShape {
  int32_t workers = 2;
  int64_t channels = 0;
  int32_t together = 1;
  // Number of rounds that are timed.
  int32_t rounds = 0;
};

// Seconds of each wait, measured by worker 0.
absl::StatusOr<std::vector<double>> RendezvousSeconds(
    const Served& server, const RendezvousShape& shape);

}  // namespace cohort::bench
