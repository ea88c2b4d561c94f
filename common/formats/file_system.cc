#include "common/formats/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status ErrnoStatus(absl::string_view what, const std::string& path,
                         int error) {
  const std::string text =
      absl::StrCat(path, ": cannot ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

  // close(2) may report a failed write; the destructor cannot.
  int Close() { return close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status WriteAll(int fd, const std::string& path, const ByteRope& rope) {
  for (const ByteRope::Piece& piece : rope.pieces()) {
    const std::byte* from = piece.bytes.data();
    size_t left = piece.bytes.size();
    while (left > 0) {
      const ssize_t wrote = write(fd, from, left);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return ErrnoStatus("write", path, errno);
      from += wrote;
      left -= static_cast<size_t>(wrote);
    }
  }
  return absl::OkStatus();
}

class PosixFileSystem final : public FileSystem {
 public:
  absl::Status WriteFile(const std::string& path, int mode,
                         absl::Span<const ByteRope> content) override {
    Descriptor file(open(path.c_str(),
                         O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                         mode));
    if (file.get() < 0) return ErrnoStatus("create", path, errno);
    for (const ByteRope& rope : content) {
      COHORT_RETURN_IF_ERROR(WriteAll(file.get(), path, rope));
    }
    if (fsync(file.get()) != 0) return ErrnoStatus("sync", path, errno);
    if (file.Close() != 0) return ErrnoStatus("close", path, errno);
    return absl::OkStatus();
  }

  absl::Status MakeDirectory(const std::string& path, int mode) override {
    if (mkdir(path.c_str(), static_cast<mode_t>(mode)) == 0) {
      return absl::OkStatus();
    }
    const int error = errno;
    struct stat info = {};
    if (error == EEXIST && stat(path.c_str(), &info) == 0 &&
        S_ISDIR(info.st_mode)) {
      return absl::OkStatus();
    }
    return ErrnoStatus("make the directory", path, error);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus("rename", from, errno);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const Descriptor dir(
        open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir.get() < 0) return ErrnoStatus("open", path, errno);
    if (fsync(dir.get()) != 0) return ErrnoStatus("sync", path, errno);
    return absl::OkStatus();
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return ErrnoStatus("remove", path, error.value());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    std::error_code error;
    std::filesystem::directory_iterator entry(path, error);
    std::vector<std::string> names;
    for (; !error && entry != std::filesystem::directory_iterator();
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) return ErrnoStatus("list", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<ByteRope> ReadFile(const std::string& path) override {
    const Descriptor file(
        open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (file.get() < 0) return ErrnoStatus("open", path, errno);
    struct stat info = {};
    if (fstat(file.get(), &info) != 0) return ErrnoStatus("read", path, errno);
    // Not mapped: a bad disk block would then kill the process with SIGBUS
    // instead of giving an error.
    auto content = std::make_shared<std::vector<std::byte>>(
        static_cast<size_t>(info.st_size));
    size_t done = 0;
    while (done < content->size()) {
      const ssize_t got =
          read(file.get(), content->data() + done, content->size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus("read", path, errno);
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    if (done != content->size()) {
      return absl::DataLossError(absl::StrCat(path, ": it shrank to ", done,
                                              " bytes while being read"));
    }
    return ByteRope(absl::MakeConstSpan(*content), content);
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static PosixFileSystem files;
  return files;
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 int mode, absl::Span<const ByteRope> content) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = files.WriteFile(temporary, mode, content);
  if (status.ok()) status = files.Rename(temporary, path);
  if (!status.ok()) {
    // The first error is the one that tells why.
    files.RemoveAll(temporary).IgnoreError();
    return status;
  }
  const size_t slash = path.rfind('/');
  return files.SyncDirectory(
      slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace cohort
