#include "common/security/checked_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
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

// Puts `file` behind `descriptor`, or makes it the descriptor if that is -1.
// The file itself is new, so that a reader of the old one continues
// undisturbed.
void Place(int file, int& descriptor) {
  if (descriptor < 0) {
    descriptor = file;
    return;
  }
  int placed = -1;
  do {
    placed = dup3(file, descriptor, O_CLOEXEC);
  } while (placed < 0 && (errno == EINTR || errno == EBUSY));
  // Otherwise it fails only for descriptors that are not open.
  COHORT_CHECK(placed >= 0, std::strerror(errno));
  close(file);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckedFiles>> CheckedFiles::Create(
    const TlsContent& content) {
  std::unique_ptr<CheckedFiles> files(new CheckedFiles);
  COHORT_RETURN_IF_ERROR(files->Replace(content));
  return files;
}

absl::Status CheckedFiles::Replace(const TlsContent& content) {
  COHORT_ASSIGN_OR_RETURN(const int ca, NewFile(content.ca));
  if (content.cert.empty()) {
    Place(ca, ca_);
    return absl::OkStatus();
  }
  const absl::StatusOr<int> own =
      NewFile(absl::StrCat(content.cert, "\n", content.key));
  if (!own.ok()) {
    close(ca);
    return own.status();
  }
  Place(ca, ca_);
  Place(*own, cert_and_key_);
  return absl::OkStatus();
}

std::string CheckedFiles::PathOf(int descriptor) {
  return descriptor < 0 ? std::string()
                        : absl::StrCat("/proc/self/fd/", descriptor);
}

}  // namespace cohort
