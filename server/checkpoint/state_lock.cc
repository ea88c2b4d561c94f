#include "server/checkpoint/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace cohort {

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Acquire(
    const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/lock");
  const int fd =
      open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    const int error = errno;
    const std::string text =
        absl::StrCat(path, ": cannot open: ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(text)
                           : absl::PermissionDeniedError(text);
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat(dir,
                     " is in use by another server; stop it or choose another "
                     "directory"));
  }
  return std::unique_ptr<StateLock>(new StateLock(fd));
}

StateLock::~StateLock() { close(fd_); }

}  // namespace cohort
