#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// Mean seconds of a step by phase, for people; names as in kStepPhaseNames.
using PhaseSeconds = std::map<std::string, double>;

// How gradients and weights travel between a worker and the server: through
// shared memory, over a Unix socket, over TCP.
inline constexpr std::array<absl::string_view, 3> kTransportNames = {
    "shm", "unix", "tcp"};

// The report in a worker's heartbeat, for people.
struct WorkerReport {
  // Means over the steps since the last report; empty if none ended.
  PhaseSeconds phases;
  // Mean number of processor cores in use since the last report.
  std::optional<double> cpu_cores;
  // Memory of the process now, bytes.
  std::optional<int64_t> resident_bytes;
  // One of kTransportNames; empty before its first push.
  std::string transport;
};

}  // namespace cohort
