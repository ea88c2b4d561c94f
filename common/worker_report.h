#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace cohort {

// Mean seconds of a step by phase, for people; names as in kStepPhaseNames.
using PhaseSeconds = std::map<std::string, double>;

// The report in a worker's heartbeat, for people.
struct WorkerReport {
  // Means over the steps since the last report; empty if none ended.
  PhaseSeconds phases;
  // Mean number of processor cores in use since the last report.
  std::optional<double> cpu_cores;
  // Memory of the process now, bytes.
  std::optional<int64_t> resident_bytes;
};

}  // namespace cohort
