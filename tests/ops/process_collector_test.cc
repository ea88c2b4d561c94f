#include "common/ops/process_collector.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "common/ops/metrics_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort {
namespace {

TEST(ProcessCollectorTest, CountsWhatThisProcessUses) {
  const ProcessFigures before = ReadProcessFigures();
  EXPECT_GT(before.resident_bytes, int64_t{1} << 20);
  EXPECT_LT(before.resident_bytes, MemoryLimitBytes());
  EXPECT_GT(before.fds_max, before.open_fds);
  const double now = std::chrono::duration<double>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  EXPECT_GT(before.start_time_seconds, now - 3600);
  EXPECT_LT(before.start_time_seconds, now + 2);

  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(ReadProcessFigures().open_fds, before.open_fds + 1);
  close(fd);
}

TEST(ProcessCollectorTest, CpuTimeRisesWithWork) {
  const double before = ReadProcessFigures().cpu_seconds;
  // Runs until the system's CPU clock, which ticks every 10 ms, has moved.
  volatile uint64_t sum = 0;
  for (uint64_t i = 0; i < 20'000'000'000; ++i) {
    sum = sum + i;
    if (i % 10'000'000 == 0 && ReadProcessFigures().cpu_seconds > before) break;
  }
  EXPECT_GT(ReadProcessFigures().cpu_seconds, before);
}

TEST(ProcessCollectorTest, UsesTheUsualNames) {
  const std::string page = MetricsPage({&ProcessFamilies});
  for (const char* name :
       {"process_cpu_seconds_total", "process_resident_memory_bytes",
        "process_open_fds", "process_max_fds", "process_start_time_seconds"}) {
    EXPECT_THAT(page, testing::HasSubstr(std::string("\n") + name + " "));
  }
}

}  // namespace
}  // namespace cohort
