#include "tests/bench/process_costs.h"

#include <time.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace cohort::bench {
namespace {

std::string Folder(pid_t process) { return absl::StrCat("/proc/", process); }

// The number after `name` in the process's status; 0 if it is not there.
int64_t StatusNumber(pid_t process, const std::string& name) {
  std::ifstream status(Folder(process) + "/status");
  std::string word;
  int64_t number = 0;
  while (status >> word) {
    if (word == name && status >> number) return number;
  }
  return 0;
}

constexpr int64_t kStatusUnit = 1024;

}  // namespace

double CpuSecondsOf(pid_t process) {
  clockid_t clock = 0;
  timespec used = {};
  if (clock_getcpuclockid(process, &clock) != 0 ||
      clock_gettime(clock, &used) != 0) {
    return 0;
  }
  return static_cast<double>(used.tv_sec) +
         static_cast<double>(used.tv_nsec) * 1e-9;
}

ProcessCosts CostsOf(pid_t process) {
  ProcessCosts costs{
      .cpu_seconds = CpuSecondsOf(process),
      .resident_bytes = kStatusUnit * StatusNumber(process, "VmRSS:"),
      .threads = StatusNumber(process, "Threads:"),
  };
  std::error_code error;
  for (std::filesystem::directory_iterator file(Folder(process) + "/fd", error),
       end;
       !error && file != end; file.increment(error)) {
    ++costs.open_files;
  }
  return costs;
}

int64_t PeakBytesOf(pid_t process) {
  return kStatusUnit * StatusNumber(process, "VmHWM:");
}

}  // namespace cohort::bench
