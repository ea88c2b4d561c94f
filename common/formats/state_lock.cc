#include "common/formats/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

// "process 4711 on host-a".
std::string OwnText() {
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return absl::StrCat("process ", getpid(), *host == '\0' ? "" : " on ", host);
}

// The line that the holder wrote; empty if it cannot be read.
std::string HolderText(int fd) {
  char text[300];
  const ssize_t got = pread(fd, text, sizeof text, 0);
  if (got <= 0) return "";
  const absl::string_view line(text, static_cast<size_t>(got));
  return absl::CHexEscape(
      absl::StripAsciiWhitespace(line.substr(0, line.find('\n'))));
}

// The line is informational only: a lock without it is still a lock.
void WriteHolder(int fd) {
  const std::string line = absl::StrCat(OwnText(), "\n");
  if (ftruncate(fd, 0) != 0) return;
  if (pwrite(fd, line.data(), line.size(), 0) < 0) return;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Acquire(
    const std::string& dir, absl::string_view name) {
  const std::string path = absl::StrCat(dir, "/", name);
  // Non-blocking: opening a FIFO in its place would otherwise wait forever.
  FileDescriptor file(
      open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
           0600));
  if (!file.valid()) {
    const int error = errno;
    const std::string text =
        absl::StrCat(path, ": cannot open: ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(text)
                           : absl::PermissionDeniedError(text);
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    const std::string holder = HolderText(file.get());
    return absl::FailedPreconditionError(
        absl::StrCat(dir, " is in use by another process",
                     holder.empty() ? "" : absl::StrCat(" (", holder, ")"),
                     "; stop it or choose another directory"));
  }
  WriteHolder(file.get());
  return std::unique_ptr<StateLock>(new StateLock(std::move(file)));
}

}  // namespace cohort
