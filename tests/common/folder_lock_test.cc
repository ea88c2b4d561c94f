#include "common/folder_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

// Whether another process could take the lock now.
bool IsFree(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  const bool taken = flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return taken;
}

TEST(FolderLockTest, ExcludesOthersAndLeavesNoFile) {
  const TempDir folder;
  {
    absl::StatusOr<FolderLock> lock = FolderLock::Take(folder.path());
    ASSERT_TRUE(lock.ok()) << lock.status();
    const FolderLock moved = *std::move(lock);
    EXPECT_FALSE(IsFree(folder.path()));
  }
  EXPECT_TRUE(IsFree(folder.path()));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FolderLockTest, NamesAFolderThatIsMissing) {
  const TempDir folder;
  EXPECT_THAT(FolderLock::Take(folder.File("x")),
              IsError(kUnavailable, folder.File("x")));
}

TEST(FolderLockTest, AFileIsNoFolder) {
  const TempDir folder;
  WriteText(folder.File("x"), "");
  EXPECT_THAT(
      std::string(FolderLock::Take(folder.File("x")).status().message()),
      HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace cohort
