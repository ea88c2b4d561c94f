#include "common/formats/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ByteRope TextRope(const std::string& text) {
  return ByteRope::Copy(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

std::vector<std::string> NamesIn(const TempDir& dir) {
  const auto names = RealFileSystem().List(dir.path());
  EXPECT_TRUE(names.ok()) << names.status();
  return names.ok() ? *names : std::vector<std::string>();
}

TEST(FileSystemTest, WritesPiecesOneAfterTheOtherAndReadsThemBack) {
  const TempDir dir;
  const std::string path = dir.File("f");
  ASSERT_TRUE(RealFileSystem()
                  .WriteFile(path, 0600, {TextRope("ab"), TextRope("cde")})
                  .ok());
  EXPECT_EQ(ReadText(path), "abcde");
  const auto read = RealFileSystem().ReadFile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToString(), "abcde");
}

TEST(FileSystemTest, GivesTheFileItsMode) {
  const TempDir dir;
  ASSERT_TRUE(RealFileSystem().WriteFile(dir.File("f"), 0600, {}).ok());
  struct stat info = {};
  ASSERT_EQ(stat(dir.File("f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(FileSystemTest, AnEmptyFileReadsAsAnEmptyRope) {
  const TempDir dir;
  WriteText(dir.File("f"), "");
  const auto read = RealFileSystem().ReadFile(dir.File("f"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->size_bytes(), 0);
}

TEST(FileSystemTest, AMissingFileIsNotFoundAndNamed) {
  const TempDir dir;
  const absl::Status status =
      RealFileSystem().ReadFile(dir.File("none")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            dir.File("none") + ": cannot open: No such file or directory");
}

TEST(FileSystemTest, AFullDiskIsResourceExhausted) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "this system has no /dev/full";
  }
  const absl::Status status =
      RealFileSystem().WriteFile("/dev/full", 0600, {TextRope("x")});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("No space left on device"));
}

// Someone who may write into the directory must not redirect the write.
TEST(FileSystemTest, LinksAreNotFollowed) {
  const TempDir dir;
  WriteText(dir.File("target"), "precious");
  std::filesystem::create_symlink(dir.File("target"), dir.File("link"));
  EXPECT_FALSE(
      RealFileSystem().WriteFile(dir.File("link"), 0600, {TextRope("x")}).ok());
  EXPECT_EQ(ReadText(dir.File("target")), "precious");
}

TEST(FileSystemTest, ListsNamesSorted) {
  const TempDir dir;
  for (const char* name : {"b", "c", "a"}) WriteText(dir.File(name), "");
  EXPECT_THAT(NamesIn(dir), ElementsAre("a", "b", "c"));
}

TEST(FileSystemTest, MakesADirectoryOnce) {
  const TempDir dir;
  FileSystem& files = RealFileSystem();
  EXPECT_TRUE(files.MakeDirectory(dir.File("d"), 0700).ok());
  EXPECT_TRUE(files.MakeDirectory(dir.File("d"), 0700).ok());
  WriteText(dir.File("f"), "");
  EXPECT_FALSE(files.MakeDirectory(dir.File("f"), 0700).ok());
}

TEST(FileSystemTest, RemovesTreesAndWhatIsNotThere) {
  const TempDir dir;
  FileSystem& files = RealFileSystem();
  ASSERT_TRUE(files.MakeDirectory(dir.File("d"), 0700).ok());
  WriteText(dir.File("d/f"), "");
  EXPECT_TRUE(files.RemoveAll(dir.File("d")).ok());
  EXPECT_TRUE(files.RemoveAll(dir.File("d")).ok());
  EXPECT_THAT(NamesIn(dir), ElementsAre());
}

TEST(WriteFileAtomicallyTest, ReplacesTheFileAndLeavesNothingElse) {
  const TempDir dir;
  WriteText(dir.File("f"), "old");
  FileSystem& files = RealFileSystem();
  ASSERT_TRUE(
      WriteFileAtomically(files, dir.File("f"), 0644, {TextRope("new")}).ok());
  EXPECT_EQ(ReadText(dir.File("f")), "new");
  EXPECT_THAT(NamesIn(dir), ElementsAre("f"));
}

// Write, rename and sync of the directory, each failing once: the error is
// told, and readers find the old content or the new one.
TEST(WriteFileAtomicallyTest, AFailureLeavesTheOldContentOrTheNew) {
  for (int32_t at = 1; at <= 3; ++at) {
    SCOPED_TRACE(at);
    const TempDir dir;
    WriteText(dir.File("f"), "old");
    FaultyFileSystem files(
        {.at = at, .error = absl::ResourceExhaustedError("full")});
    const absl::Status status =
        WriteFileAtomically(files, dir.File("f"), 0644, {TextRope("new")});
    EXPECT_EQ(status, absl::ResourceExhaustedError("full"));
    EXPECT_EQ(ReadText(dir.File("f")), at == 3 ? "new" : "old");
    EXPECT_THAT(NamesIn(dir), ElementsAre("f"));
  }
}

}  // namespace
}  // namespace cohort
