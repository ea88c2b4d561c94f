#include "common/formats/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/temp_dir.h"

namespace {

// Paths that were synced, in order. Tests run one at a time.
std::vector<std::string>& Synced() {
  static std::vector<std::string> paths;
  return paths;
}

}  // namespace

// Takes the place of the C library's function in this program, because nothing
// else shows whether a file has reached the disk.
extern "C" int fsync(int fd) {
  std::error_code error;
  Synced().push_back(
      std::filesystem::read_symlink(
          std::filesystem::path("/proc/self/fd") / std::to_string(fd), error)
          .string());
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace cohort {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> NamesIn(const TempDir& dir) {
  const auto names = RealFileSystem().List(dir.path());
  EXPECT_TRUE(names.ok()) << names.status();
  return names.ok() ? *names : std::vector<std::string>();
}

TEST(FileSystemTest, WritesPiecesOneAfterTheOtherAndReadsThemBack) {
  const TempDir dir;
  const std::string path = dir.File("f");
  ASSERT_TRUE(
      RealFileSystem()
          .WriteFile(path, 0600,
                     {ByteRope::CopyText("ab"), ByteRope::CopyText("cde")})
          .ok());
  EXPECT_EQ(ReadText(path), "abcde");
  const auto read = RealFileSystem().ReadFile(path, kAnyFileSize);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToString(), "abcde");
}

TEST(FileSystemTest, AWrittenFileIsOnTheDisk) {
  const TempDir dir;
  Synced().clear();
  ASSERT_TRUE(
      RealFileSystem()
          .WriteFile(dir.File("f"), 0600, {ByteRope::CopyText("content")})
          .ok());
  EXPECT_THAT(Synced(),
              Contains(std::filesystem::canonical(dir.File("f")).string()));
}

TEST(FileSystemTest, ASyncedDirectoryIsOnTheDisk) {
  const TempDir dir;
  Synced().clear();
  ASSERT_TRUE(RealFileSystem().SyncDirectory(dir.path()).ok());
  EXPECT_THAT(Synced(),
              Contains(std::filesystem::canonical(dir.path()).string()));
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
  const auto read = RealFileSystem().ReadFile(dir.File("f"), kAnyFileSize);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->size_bytes(), 0);
}

TEST(FileSystemTest, AMissingFileIsNotFoundAndNamed) {
  const TempDir dir;
  const absl::Status status =
      RealFileSystem().ReadFile(dir.File("none"), kAnyFileSize).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            dir.File("none") + ": cannot open: No such file or directory");
}

TEST(FileSystemTest, OnlyRegularFilesOfTheWantedSizeAreRead) {
  const TempDir dir;
  ASSERT_EQ(mkfifo(dir.File("pipe").c_str(), 0600), 0);
  WriteText(dir.File("f"), "abc");
  std::filesystem::create_symlink(dir.File("f"), dir.File("link"));
  WriteText(dir.File("sparse"), "");
  std::filesystem::resize_file(dir.File("sparse"), uintmax_t{1} << 42);
  const auto nothing = [](absl::Span<const std::byte>) { FAIL(); };
  struct Case {
    const char* name;
    int64_t bytes_max;
    const char* why;
  };
  for (const Case& c :
       {Case{"pipe", 9, ": got a named pipe, want a regular file"},
        Case{"", 9, "/: got a directory, want a regular file"},
        Case{"link", 9, ": got a symbolic link, want a regular file"},
        Case{"f", 2, ": got 3 bytes, want at most 2"},
        Case{"sparse", 9, ": got 4398046511104 bytes, want at most 9"}}) {
    const std::string path = dir.File(c.name);
    for (const absl::Status& status :
         {RealFileSystem().ReadFile(path, c.bytes_max).status(),
          ReadFileInPieces(path, c.bytes_max, nothing)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr(c.why));
    }
  }
  // Without another limit, memory is the limit.
  const absl::Status large =
      RealFileSystem().ReadFile(dir.File("sparse"), kAnyFileSize).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(large.message()),
              HasSubstr("got 4398046511104 bytes, want at most the "));
}

TEST(FileSystemTest, PiecesAreTheWholeFileInOrder) {
  const TempDir dir;
  std::string wanted(2'500'000, 'a');
  for (size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = static_cast<char>(i % 251);
  }
  WriteText(dir.File("f"), wanted);
  std::string seen;
  ASSERT_TRUE(ReadFileInPieces(
                  dir.File("f"), kAnyFileSize,
                  [&seen](absl::Span<const std::byte> piece) {
                    seen.append(reinterpret_cast<const char*>(piece.data()),
                                piece.size());
                  })
                  .ok());
  EXPECT_TRUE(seen == wanted);
}

TEST(FileSystemTest, AFullDiskIsResourceExhausted) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "this system has no /dev/full";
  }
  const absl::Status status =
      RealFileSystem().WriteFile("/dev/full", 0600, {ByteRope::CopyText("x")});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("No space left on device"));
}

// A user that may write into the directory must not redirect the write.
TEST(FileSystemTest, LinksAreNotFollowed) {
  const TempDir dir;
  WriteText(dir.File("target"), "precious");
  std::filesystem::create_symlink(dir.File("target"), dir.File("link"));
  EXPECT_FALSE(RealFileSystem()
                   .WriteFile(dir.File("link"), 0600, {ByteRope::CopyText("x")})
                   .ok());
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
  ASSERT_TRUE(WriteFileAtomically(files, dir.File("f"), 0644,
                                  {ByteRope::CopyText("new")})
                  .ok());
  EXPECT_EQ(ReadText(dir.File("f")), "new");
  EXPECT_THAT(NamesIn(dir), ElementsAre("f"));
}

// Write, rename and sync of the directory, each failing once: the error is
// reported, and readers find the old content or the new one.
TEST(WriteFileAtomicallyTest, AFailureLeavesTheOldContentOrTheNew) {
  for (int32_t at = 1; at <= 3; ++at) {
    SCOPED_TRACE(at);
    const TempDir dir;
    WriteText(dir.File("f"), "old");
    FaultyFileSystem files(
        {.at = at, .error = absl::ResourceExhaustedError("full")});
    const absl::Status status = WriteFileAtomically(
        files, dir.File("f"), 0644, {ByteRope::CopyText("new")});
    EXPECT_EQ(status, absl::ResourceExhaustedError("full"));
    EXPECT_EQ(ReadText(dir.File("f")), at == 3 ? "new" : "old");
    EXPECT_THAT(NamesIn(dir), ElementsAre("f"));
  }
}

}  // namespace
}  // namespace cohort
