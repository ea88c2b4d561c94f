#include "common/folder_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

constexpr int kPauseMs = 10;
// Others hold the lock for less than a millisecond.
constexpr int kTriesMax = 500;

}  // namespace

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder) {
  FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return absl::UnavailableError(
        errno == ENOENT
            ? absl::StrCat("the folder ", folder, " does not exist; make it")
            : absl::StrCat(folder, ": ", std::strerror(errno)));
  }
  for (int tries = 0; flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
    // Some network file systems lock no folders; two servers that start there
    // at once are not kept apart.
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    if (tries == kTriesMax) {
      return absl::UnavailableError(
          absl::StrCat("another process holds a lock (flock) on the folder ",
                       folder, "; end it, or choose another folder"));
    }
    poll(nullptr, 0, kPauseMs);
  }
  return FolderLock(std::move(fd));
}

}  // namespace cohort
