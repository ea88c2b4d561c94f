#pragma once

#include <sys/types.h>

#include <cstdint>

namespace cohort::bench {

// Resources that another process of this user has in use.
struct ProcessCosts {
  double cpu_seconds = 0;
  int64_t resident_bytes = 0;
  int64_t open_files = 0;
  int64_t threads = 0;
};

// All 0 if there is no such process.
ProcessCosts CostsOf(pid_t process);
// Its CPU time alone, to the nanosecond.
double CpuSecondsOf(pid_t process);
// The most memory that it has had.
int64_t PeakBytesOf(pid_t process);

}  // namespace cohort::bench
