#include "server/checkpoint/state_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::HasSubstr;

TEST(StateLockTest, ASecondServerIsRefusedUntilTheFirstEnds) {
  const TempDir dir;
  auto first = StateLock::Acquire(dir.path());
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = StateLock::Acquire(dir.path()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()),
              HasSubstr(dir.path() + " is in use by another server"));
  first->reset();
  EXPECT_TRUE(StateLock::Acquire(dir.path()).ok());
}

TEST(StateLockTest, DirectoriesAreIndependent) {
  const TempDir a;
  const TempDir b;
  const auto lock_a = StateLock::Acquire(a.path());
  const auto lock_b = StateLock::Acquire(b.path());
  EXPECT_TRUE(lock_a.ok() && lock_b.ok());
}

TEST(StateLockTest, AMissingDirectoryIsNotFound) {
  const TempDir dir;
  EXPECT_EQ(StateLock::Acquire(dir.File("none")).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace cohort
