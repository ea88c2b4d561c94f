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
#include "tests/fakes/statuses.h"
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

std::vector<std::string> NamesIn(const TempDir& dir) {
  const auto names = RealFileSystem().List(dir.path());
  EXPECT_TRUE(names.ok()) << names.status();
  return names.ok() ? *names : std::vector<std::string>();
}

class FileSystemTest : public testing::Test {
 protected:
  const TempDir dir_;
};

TEST_F(FileSystemTest, WritesPiecesOneAfterTheOtherAndReadsThemBack) {
  const std::string path = dir_.File("f");
  ExpectOk(RealFileSystem().WriteFile(
      path, 0600, {ByteRope::CopyText("ab"), ByteRope::CopyText("cde")}));
  EXPECT_EQ(ReadText(path), "abcde");
  const auto read = OkValue(RealFileSystem().ReadFile(path, kAnyFileSize));
  EXPECT_EQ(read.ToString(), "abcde");
}

TEST_F(FileSystemTest, AWrittenFileIsOnTheDisk) {
  Synced().clear();
  ExpectOk(RealFileSystem().WriteFile(dir_.File("f"), 0600,
                                      {ByteRope::CopyText("content")}));
  EXPECT_THAT(Synced(),
              Contains(std::filesystem::canonical(dir_.File("f")).string()));
}

TEST_F(FileSystemTest, ASyncedDirectoryIsOnTheDisk) {
  Synced().clear();
  ASSERT_TRUE(RealFileSystem().SyncDirectory(dir_.path()).ok());
  EXPECT_THAT(Synced(),
              Contains(std::filesystem::canonical(dir_.path()).string()));
}

TEST_F(FileSystemTest, GivesTheFileItsMode) {
  ASSERT_TRUE(RealFileSystem().WriteFile(dir_.File("f"), 0600, {}).ok());
  struct stat info = {};
  ASSERT_EQ(stat(dir_.File("f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(FileSystemTest, AnEmptyFileReadsAsAnEmptyRope) {
  WriteText(dir_.File("f"), "");
  const auto read =
      OkValue(RealFileSystem().ReadFile(dir_.File("f"), kAnyFileSize));
  EXPECT_EQ(read.size_bytes(), 0);
}

TEST_F(FileSystemTest, AMissingFileIsNotFoundAndNamed) {
  EXPECT_THAT(RealFileSystem().ReadFile(dir_.File("none"), kAnyFileSize),
              IsError(kNotFound, dir_.File("none") + ": cannot open"));
}

TEST_F(FileSystemTest, OnlyRegularFilesOfTheWantedSizeAreRead) {
  ASSERT_EQ(mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  WriteText(dir_.File("f"), "abc");
  std::filesystem::create_symlink(dir_.File("f"), dir_.File("link"));
  WriteText(dir_.File("sparse"), "");
  std::filesystem::resize_file(dir_.File("sparse"), uintmax_t{1} << 42);
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
    const std::string path = dir_.File(c.name);
    for (const absl::Status& status :
         {RealFileSystem().ReadFile(path, c.bytes_max).status(),
          ReadFileInPieces(path, c.bytes_max, nothing)}) {
      EXPECT_THAT(status, IsError(kDataLoss, c.why));
    }
  }
  // Without another limit, memory is the limit.
  EXPECT_THAT(RealFileSystem().ReadFile(dir_.File("sparse"), kAnyFileSize),
              IsError(kResourceExhausted, "got 4398046511104 bytes"));
}

TEST_F(FileSystemTest, PiecesAreTheWholeFileInOrder) {
  std::string wanted(2'500'000, 'a');
  for (size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = static_cast<char>(i % 251);
  }
  WriteText(dir_.File("f"), wanted);
  std::string seen;
  ExpectOk(ReadFileInPieces(
      dir_.File("f"), kAnyFileSize, [&seen](absl::Span<const std::byte> piece) {
        seen.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      }));
  EXPECT_TRUE(seen == wanted);
}

TEST_F(FileSystemTest, AFullDiskIsResourceExhausted) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "this system has no /dev/full";
  }
  EXPECT_THAT(
      RealFileSystem().WriteFile("/dev/full", 0600, {ByteRope::CopyText("x")}),
      IsError(kResourceExhausted, "No space left"));
}

// A user that may write into the directory must not redirect the write.
TEST_F(FileSystemTest, LinksAreNotFollowed) {
  WriteText(dir_.File("target"), "precious");
  std::filesystem::create_symlink(dir_.File("target"), dir_.File("link"));
  EXPECT_FALSE(
      RealFileSystem()
          .WriteFile(dir_.File("link"), 0600, {ByteRope::CopyText("x")})
          .ok());
  EXPECT_EQ(ReadText(dir_.File("target")), "precious");
}

TEST_F(FileSystemTest, ListsNamesSorted) {
  for (const char* name : {"b", "c", "a"}) WriteText(dir_.File(name), "");
  EXPECT_THAT(NamesIn(dir_), ElementsAre("a", "b", "c"));
}

TEST_F(FileSystemTest, MakesADirectoryOnce) {
  FileSystem& files = RealFileSystem();
  EXPECT_TRUE(files.MakeDirectory(dir_.File("d"), 0700).ok());
  EXPECT_TRUE(files.MakeDirectory(dir_.File("d"), 0700).ok());
  WriteText(dir_.File("f"), "");
  EXPECT_FALSE(files.MakeDirectory(dir_.File("f"), 0700).ok());
}

TEST_F(FileSystemTest, RemovesTreesAndWhatIsNotThere) {
  FileSystem& files = RealFileSystem();
  ASSERT_TRUE(files.MakeDirectory(dir_.File("d"), 0700).ok());
  WriteText(dir_.File("d/f"), "");
  EXPECT_TRUE(files.RemoveAll(dir_.File("d")).ok());
  EXPECT_TRUE(files.RemoveAll(dir_.File("d")).ok());
  EXPECT_THAT(NamesIn(dir_), ElementsAre());
}

TEST(WriteFileAtomicallyTest, ReplacesTheFileAndLeavesNothingElse) {
  const TempDir dir;
  WriteText(dir.File("f"), "old");
  FileSystem& files = RealFileSystem();
  ExpectOk(WriteFileAtomically(files, dir.File("f"), 0644,
                               {ByteRope::CopyText("new")}));
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
