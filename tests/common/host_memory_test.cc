#include "common/host_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace cohort {
namespace {

constexpr size_t kBytes = size_t{64} << 20;

int64_t PageFaults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

void UseAndFree() {
  void* block = malloc(kBytes);
  memset(block, 1, kBytes);
  // Otherwise the compiler leaves all of it out.
  asm volatile("" : : "r"(block) : "memory");
  free(block);
}

// Page faults of the second use of as much memory, in a separate process: the
// call cannot be taken back.
int64_t FaultsOfTheSecondUse(bool keep) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (keep) KeepFreedMemory();
    UseAndFree();
    const int64_t before = PageFaults();
    UseAndFree();
    const int64_t faults = PageFaults() - before;
    const ssize_t wrote = write(ends[1], &faults, sizeof(faults));
    _exit(wrote == sizeof(faults) ? 0 : 1);
  }
  int64_t faults = -1;
  EXPECT_EQ(read(ends[0], &faults, sizeof(faults)), sizeof(faults));
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  return faults;
}

TEST(HostMemoryTest, FreedMemoryIsUsedAgainWithoutPageFaults) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    !defined(__GLIBC__)
  GTEST_SKIP() << "another allocator than glibc's";
#endif
  EXPECT_GT(FaultsOfTheSecondUse(false), 10);
  // Some for the process itself; a huge page would be one fault, too.
  EXPECT_LT(FaultsOfTheSecondUse(true), 10);
}

}  // namespace
}  // namespace cohort
