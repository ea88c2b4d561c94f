#include "common/progress_report.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace cohort {

ProgressReport::ProgressReport() {
  const char* const given = std::getenv(kProgressVariable.data());
  if (given == nullptr) return;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(given, absl::MaxSplits(':', 1));
  int fd = -1;
  uint64_t inode = 0;
  struct stat what = {};
  // A program that a supervised process starts has the variable, but not the
  // descriptor: its number may be that of another file, which the inode tells.
  if (!absl::SimpleAtoi(parts.first, &fd) ||
      !absl::SimpleAtoi(parts.second, &inode) || fstat(fd, &what) != 0 ||
      what.st_ino != inode) {
    return;
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fd_ = fd;
}

void ProgressReport::Made() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  // The descriptor stays open: another client of this process may report too.
  // A supervisor that is gone is no concern of the run.
  [[maybe_unused]] const ssize_t sent =
      send(fd, "+", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace cohort
