#include "common/local/release_counts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "common/local/shared_memory.h"

namespace cohort {
namespace {

constexpr int32_t kCount = 3;

SharedMemory Memory() {
  auto memory = SharedMemory::Create("test", ReleaseCounts::SizeBytes(kCount),
                                     SharedMemory::Writer::kCreator);
  return *std::move(memory);
}

// The same counters as another process sees them: it cannot write.
ReleaseCounts SeenByOthers(const ReleaseCounts& counts) {
  return ReleaseCounts(
      *SharedMemory::Map(FileDescriptor(dup(counts.fd())),
                         ReleaseCounts::SizeBytes(kCount), /*writable=*/false),
      kCount);
}

TEST(ReleaseCountsTest, EachPlaceHasItsCount) {
  ReleaseCounts own(Memory(), kCount);
  const ReleaseCounts other = SeenByOthers(own);
  own.Raise(1);
  own.Raise(1);
  own.Raise(2);
  EXPECT_EQ(other.Get(0), 0u);
  EXPECT_EQ(other.Get(1), 2u);
  EXPECT_EQ(other.Get(2), 1u);
}

TEST(ReleaseCountsTest, AWaitEndsWithTheRelease) {
  ReleaseCounts own(Memory(), kCount);
  const ReleaseCounts other = SeenByOthers(own);
  std::thread waits([&other] {
    while (other.Get(0) == 0) {
      other.WaitWhile(0, 0, absl::InfiniteDuration());
    }
  });
  own.Raise(0);
  waits.join();
  EXPECT_EQ(other.Get(0), 1u);
}

TEST(ReleaseCountsTest, AWaitForWhatHasHappenedReturnsAtOnce) {
  ReleaseCounts own(Memory(), kCount);
  own.Raise(0);
  own.WaitWhile(0, 0, absl::InfiniteDuration());
}

TEST(ReleaseCountsTest, AWaitHasAnEnd) {
  const ReleaseCounts own(Memory(), kCount);
  own.WaitWhile(0, 0, absl::Milliseconds(1));
}

}  // namespace
}  // namespace cohort
