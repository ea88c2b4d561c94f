#include "common/security/checked_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status Failed(const char* what) {
  return absl::UnavailableError(
      absl::StrCat("TLS files: ", what, " failed: ", std::strerror(errno)));
}

// A descriptor of a new file in memory.
absl::StatusOr<int> NewFile(const std::string& text) {
  const int file = memfd_create("cohort-tls", MFD_CLOEXEC);
  if (file < 0) return Failed("memfd_create");
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(file, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const absl::Status failed = Failed("writing a memory file");
      close(file);
      return failed;
    }
    written += static_cast<size_t>(n);
  }
  return file;
}

// Puts a file with `text` behind `descriptor`, or behind a new one if it is -1.
// The file itself is new, so that a reader of the old one goes on undisturbed.
absl::Status Put(const std::string& text, int& descriptor) {
  COHORT_ASSIGN_OR_RETURN(const int file, NewFile(text));
  if (descriptor < 0) {
    descriptor = file;
    return absl::OkStatus();
  }
  const int placed = dup3(file, descriptor, O_CLOEXEC);
  const absl::Status result = placed < 0 ? Failed("dup3") : absl::OkStatus();
  close(file);
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckedFiles>> CheckedFiles::Create(
    const TlsContent& content) {
  std::unique_ptr<CheckedFiles> files(new CheckedFiles);
  COHORT_RETURN_IF_ERROR(files->Replace(content));
  return files;
}

absl::Status CheckedFiles::Replace(const TlsContent& content) {
  COHORT_RETURN_IF_ERROR(Put(content.ca, ca_));
  if (content.cert.empty()) return absl::OkStatus();
  return Put(absl::StrCat(content.cert, "\n", content.key), cert_and_key_);
}

std::string CheckedFiles::PathOf(int descriptor) {
  return descriptor < 0 ? std::string()
                        : absl::StrCat("/proc/self/fd/", descriptor);
}

}  // namespace cohort
