#pragma once

#include <cstdint>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace cohort {

// What this process uses. What the system does not tell is 0.
struct ProcessFigures {
  double cpu_seconds = 0;
  int64_t resident_bytes = 0;
  int64_t open_fds = 0;
  int64_t fds_max = 0;
  // Wall time, seconds since 1970.
  double start_time_seconds = 0;
};

ProcessFigures ReadProcessFigures();

// Memory that this process may use, bytes: the control group's limit, or the
// machine's memory where there is none.
int64_t MemoryLimitBytes();

// The process_* metrics under the names that every Prometheus client uses.
// Thread safety: safe.
class ProcessCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace cohort
