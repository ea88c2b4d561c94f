#pragma once

#include <cstdint>

#include "common/ops/metrics_page.h"

namespace cohort {

// Resources that this process uses. Values that the system does not provide are
// 0.
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
// machine's memory if there is none.
int64_t MemoryLimitBytes();

// The process_* metrics under the names used by every Prometheus client.
MetricFamilies ProcessFamilies();

}  // namespace cohort
