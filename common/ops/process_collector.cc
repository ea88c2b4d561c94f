#include "common/ops/process_collector.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>

namespace cohort {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Fields of /proc/self/stat from the third on. The second, the program's name
// in brackets, may contain anything.
std::vector<double> StatFields() {
  const std::string text = ReadText("/proc/self/stat");
  const size_t name_end = text.rfind(')');
  std::vector<double> fields;
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(text.substr(name_end + 1));
  std::string state;
  rest >> state;
  fields.push_back(0);
  for (double field = 0; rest >> field;) fields.push_back(field);
  return fields;
}

// Source: proc(5); fields are numbered from 1.
double Field(const std::vector<double>& fields, size_t number) {
  constexpr size_t kFirst = 3;
  const size_t at = number - kFirst;
  return at < fields.size() ? fields[at] : 0;
}

double BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    double seconds = 0;
    if (words >> key >> seconds && key == "btime") return seconds;
  }
  return 0;
}

int64_t OpenFds() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  if (error) return 0;
  // Excludes the descriptor that the iterator itself holds.
  return std::distance(begin(all), end(all)) - 1;
}

int64_t FdsMax() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  constexpr auto kMax =
      static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMax));
}

int64_t MachineMemoryBytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace

ProcessFigures ReadProcessFigures() {
  constexpr size_t kUserTicks = 14;
  constexpr size_t kSystemTicks = 15;
  constexpr size_t kStartTicks = 22;
  constexpr size_t kResidentPages = 24;
  const std::vector<double> fields = StatFields();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  // Read once, because the file has a line for every processor.
  static const double kBootTime = BootTimeSeconds();
  return {
      .cpu_seconds =
          (Field(fields, kUserTicks) + Field(fields, kSystemTicks)) / ticks,
      .resident_bytes = static_cast<int64_t>(Field(fields, kResidentPages)) *
                        sysconf(_SC_PAGESIZE),
      .open_fds = OpenFds(),
      .fds_max = FdsMax(),
      .start_time_seconds = kBootTime + Field(fields, kStartTicks) / ticks};
}

int64_t MemoryLimitBytes() {
  int64_t limit = MachineMemoryBytes();
  // Control groups version 2, then version 1. Inside a container its own group
  // appears as the root.
  for (const char* path : {"/sys/fs/cgroup/memory.max",
                           "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t bytes = 0;
    // "max" does not parse as a number.
    if (file >> bytes && bytes > 0) limit = std::min(limit, bytes);
  }
  return limit;
}

MetricFamilies ProcessFamilies() {
  const ProcessFigures figures = ReadProcessFigures();
  MetricFamilies families = {
      CounterFamily("process_cpu_seconds_total",
                    "User and system CPU time spent."),
      GaugeFamily("process_resident_memory_bytes", "Resident memory."),
      GaugeFamily("process_open_fds", "Open file descriptors."),
      GaugeFamily("process_max_fds", "File descriptors that may be open."),
      GaugeFamily("process_start_time_seconds",
                  "Start of the process, seconds since 1970."),
  };
  AddValue(families[0], figures.cpu_seconds);
  AddValue(families[1], static_cast<double>(figures.resident_bytes));
  AddValue(families[2], static_cast<double>(figures.open_fds));
  AddValue(families[3], static_cast<double>(figures.fds_max));
  AddValue(families[4], figures.start_time_seconds);
  return families;
}

}  // namespace cohort
