#include "worker/datasets/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Enough for an image, a list or a batch of CIFAR.
constexpr int64_t kFileBytesMax = int64_t{1} << 30;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

absl::Status CannotRead(const std::string& path, int error) {
  const std::string text =
      absl::StrCat(path, ": cannot read: ", std::strerror(error));
  return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                             : absl::InternalError(text);
}

}  // namespace

absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path,
                                               int64_t* size_bytes) {
  // Non-blocking: opening a pipe without a writer would block for ever.
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return CannotRead(path, errno);
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(path, ": not a regular file"));
  }
  *size_bytes = static_cast<int64_t>(info.st_size);
  return file;
}

absl::StatusOr<std::vector<uint8_t>> ReadBytes(const std::string& path) {
  int64_t size = 0;
  COHORT_ASSIGN_OR_RETURN(FileDescriptor fd, OpenRegularFile(path, &size));
  const std::unique_ptr<std::FILE, FileCloser> file(fdopen(fd.get(), "rb"));
  if (file == nullptr) return CannotRead(path, errno);
  fd.Release();
  if (size > kFileBytesMax) {
    return absl::DataLossError(absl::StrCat(
        path, ": got ", size, " bytes, want at most ", kFileBytesMax));
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  const size_t got = std::fread(bytes.data(), 1, bytes.size(), file.get());
  if (std::ferror(file.get()) != 0) return CannotRead(path, errno);
  // Shorter if the file was truncated since then.
  bytes.resize(got);
  return bytes;
}

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadBytes(path));
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()),
                               bytes.size());
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view bare = absl::StripAsciiWhitespace(line);
    if (!bare.empty()) lines.emplace_back(bare);
  }
  return lines;
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  std::vector<std::string> names;
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name[0] != '.') names.push_back(std::move(name));
  }
  if (error) return CannotRead(path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::Status CheckDataDir(const std::string& dataset, const std::string& dir,
                          const std::string& wanted) {
  if (dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(dataset, " has no default folder; pass the folder of ",
                     wanted, " as --data_dir"));
  }
  if (IsFolder(dir)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(dir, ": no such folder; pass the folder of ", dataset, "'s ",
                   wanted, " as --data_dir"));
}

}  // namespace cohort
