#include "common/formats/state_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::HasSubstr;

TEST(StateLockTest, ASecondServerIsRefusedUntilTheFirstEnds) {
  const TempDir dir;
  auto first = OkValue(StateLock::Acquire(dir.path()));
  EXPECT_THAT(StateLock::Acquire(dir.path()),
              IsError(kFailedPrecondition, dir.path() + " is in use"));
  first.reset();
  EXPECT_TRUE(StateLock::Acquire(dir.path()).ok());
}

TEST(StateLockTest, DirectoriesAreIndependent) {
  const TempDir a;
  const TempDir b;
  const auto lock_a = StateLock::Acquire(a.path());
  const auto lock_b = StateLock::Acquire(b.path());
  EXPECT_TRUE(lock_a.ok() && lock_b.ok());
}

TEST(StateLockTest, TheHolderIsNamed) {
  const TempDir dir;
  const auto first = StateLock::Acquire(dir.path());
  EXPECT_THAT(std::string(StateLock::Acquire(dir.path()).status().message()),
              HasSubstr(absl::StrCat("(process ", getpid(), " on ")));
}

// Such as locks of results and checkpoints in one folder.
TEST(StateLockTest, LocksOfTwoNamesAreIndependent) {
  const TempDir dir;
  const auto a = StateLock::Acquire(dir.path(), "lock");
  const auto b = StateLock::Acquire(dir.path(), ".cohort-lock");
  EXPECT_TRUE(a.ok() && b.ok());
}

TEST(StateLockTest, AMissingDirectoryIsNotFound) {
  const TempDir dir;
  EXPECT_EQ(StateLock::Acquire(dir.File("none")).status().code(), kNotFound);
}

}  // namespace
}  // namespace cohort
