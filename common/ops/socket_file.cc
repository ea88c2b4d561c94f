#include "common/ops/socket_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/file_descriptor.h"
#include "common/folder_lock.h"
#include "common/status_macros.h"
#include "common/unix_address.h"

namespace cohort {
namespace {

absl::Status Failed(int error) {
  return absl::UnavailableError(std::strerror(error));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Returns the errno of a connection there, or 0.
int Connect(const UnixAddress& address) {
  const FileDescriptor fd(
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  return connect(fd.get(), address.get(), address.size) == 0 ? 0 : errno;
}

// Removes the socket of a process that is gone.
absl::Status MakeRoom(const std::string& path, const UnixAddress& address) {
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Failed(errno);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::UnavailableError(
        "there is a file of that name, which is no socket; choose another "
        "name");
  }
  switch (const int error = Connect(address)) {
    case ECONNREFUSED:
      if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
      return absl::UnavailableError(
          absl::StrCat("an ended process has left its socket there, which "
                       "cannot be removed: ",
                       std::strerror(errno)));
    case ENOENT:
      return absl::OkStatus();
    // A full queue, and another type of socket.
    case 0:
    case EAGAIN:
    case EPROTOTYPE:
      return absl::UnavailableError(
          "the socket is in use: another process listens there; stop that "
          "process or choose another name");
    default:
      return absl::UnavailableError(
          absl::StrCat("there is a socket that this user cannot connect to: ",
                       std::strerror(error), "; choose another name"));
  }
}

}  // namespace

absl::StatusOr<SocketFile> SocketFile::Listen(int fd, const std::string& path,
                                              int backlog) {
  COHORT_ASSIGN_OR_RETURN(const UnixAddress address, UnixAddressOf(path));
  // Otherwise two servers that start at once could take each other's socket,
  // which does not listen yet, for that of a killed one.
  COHORT_ASSIGN_OR_RETURN(const FolderLock lock,
                          FolderLock::Take(FolderOf(path)));
  COHORT_RETURN_IF_ERROR(MakeRoom(path, address));
  if (bind(fd, address.get(), address.size) != 0) return Failed(errno);
  SocketFile file;
  file.path_ = path;
  struct stat made = {};
  if (lstat(path.c_str(), &made) != 0) return Failed(errno);
  file.device_ = made.st_dev;
  file.inode_ = made.st_ino;
  // No process can connect before the socket listens, so the mode of the
  // process (umask), which others share, need not be changed.
  if (chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(fd, backlog) != 0) {
    return Failed(errno);
  }
  return file;
}

SocketFile::SocketFile(SocketFile&& other) noexcept
    : path_(std::exchange(other.path_, "")),
      device_(other.device_),
      inode_(other.inode_) {}

SocketFile& SocketFile::operator=(SocketFile&& other) noexcept {
  Remove();
  path_ = std::exchange(other.path_, "");
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

void SocketFile::Remove() {
  if (path_.empty()) return;
  struct stat found = {};
  if (lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ &&
      found.st_ino == inode_) {
    unlink(path_.c_str());
  }
  path_.clear();
}

}  // namespace cohort
