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
#include "common/file_descriptor.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

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

const char* KindText(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

struct RegularFile {
  FileDescriptor descriptor;
  int64_t bytes = 0;
};

absl::StatusOr<RegularFile> OpenRegular(const std::string& path,
                                        int64_t bytes_max) {
  // Non-blocking: opening a pipe without a writer would otherwise wait forever.
  RegularFile file{
      .descriptor = FileDescriptor(
          open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
  if (!file.descriptor.valid()) {
    if (errno == ELOOP) {
      return absl::DataLossError(
          absl::StrCat(path, ": got a symbolic link, want a regular file"));
    }
    return ErrnoStatus("open", path, errno);
  }
  struct stat info = {};
  if (fstat(file.descriptor.get(), &info) != 0) {
    return ErrnoStatus("read", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(
        path, ": got ", KindText(info.st_mode), ", want a regular file"));
  }
  file.bytes = static_cast<int64_t>(info.st_size);
  if (file.bytes > bytes_max) {
    return absl::DataLossError(absl::StrCat(
        path, ": got ", file.bytes, " bytes, want at most ", bytes_max));
  }
  return file;
}

absl::Status ReadExactly(int fd, const std::string& path,
                         absl::Span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = read(fd, out.data() + done, out.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("read", path, errno);
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": it shrank while being read: got ", done,
                       " bytes, want ", out.size()));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

int64_t MachineMemory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

class PosixFileSystem final : public FileSystem {
 public:
  absl::Status WriteFile(const std::string& path, int mode,
                         absl::Span<const ByteRope> content) override {
    FileDescriptor file(
        open(path.c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!file.valid()) return ErrnoStatus("create", path, errno);
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
    return ErrnoStatus("create the directory", path, error);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus("rename", from, errno);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const FileDescriptor dir(
        open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!dir.valid()) return ErrnoStatus("open", path, errno);
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

  absl::StatusOr<ByteRope> ReadFile(const std::string& path,
                                    int64_t bytes_max) override {
    COHORT_ASSIGN_OR_RETURN(const RegularFile file,
                            OpenRegular(path, bytes_max));
    if (file.bytes > MachineMemory()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": got ", file.bytes, " bytes, want at most the ",
                       MachineMemory(), " bytes of memory of this machine"));
    }
    // Read, not mapped: a bad disk block would kill the process with SIGBUS
    // instead of giving an error.
    auto content = std::make_shared<std::vector<std::byte>>(
        static_cast<size_t>(file.bytes));
    COHORT_RETURN_IF_ERROR(
        ReadExactly(file.descriptor.get(), path, absl::MakeSpan(*content)));
    return ByteRope(absl::MakeConstSpan(*content), content);
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static PosixFileSystem files;
  return files;
}

absl::Status ReadFileInPieces(
    const std::string& path, int64_t bytes_max,
    absl::FunctionRef<void(absl::Span<const std::byte>)> take) {
  COHORT_ASSIGN_OR_RETURN(const RegularFile file, OpenRegular(path, bytes_max));
  std::vector<std::byte> piece(kPieceBytes);
  for (int64_t left = file.bytes; left > 0;) {
    const absl::Span<std::byte> part = absl::MakeSpan(piece).subspan(
        0, static_cast<size_t>(std::min<int64_t>(left, kPieceBytes)));
    COHORT_RETURN_IF_ERROR(ReadExactly(file.descriptor.get(), path, part));
    take(part);
    left -= static_cast<int64_t>(part.size());
  }
  return absl::OkStatus();
}

absl::Status CheckNoPipe(const std::string& path) {
  struct stat info = {};
  // If the file is missing or cannot be examined, the caller's open reports it.
  if (stat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": got ", KindText(info.st_mode),
      ", want a regular file or none; remove it or choose another path"));
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 int mode, absl::Span<const ByteRope> content) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = files.WriteFile(temporary, mode, content);
  if (status.ok()) status = files.Rename(temporary, path);
  if (!status.ok()) {
    // The first error names the cause.
    files.RemoveAll(temporary).IgnoreError();
    return status;
  }
  const size_t slash = path.rfind('/');
  return files.SyncDirectory(
      slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 int mode, absl::string_view content) {
  return WriteFileAtomically(files, path, mode, {ByteRope::CopyText(content)});
}

}  // namespace cohort
