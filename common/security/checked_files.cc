#include "common/security/checked_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/file_descriptor.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status Failed(const char* what) {
  return absl::UnavailableError(
      absl::StrCat("TLS files: ", what, " failed: ", std::strerror(errno)));
}

// A descriptor of a new file in memory.
absl::StatusOr<FileDescriptor> NewFile(const std::string& text) {
  FileDescriptor file(memfd_create("cohort-tls", MFD_CLOEXEC));
  if (!file.valid()) return Failed("memfd_create");
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n =
        write(file.get(), text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("writing a memory file");
    written += static_cast<size_t>(n);
  }
  return file;
}

// Puts `file` behind `descriptor`, or makes it the descriptor if that is -1.
// The file itself is new, so that a reader of the old one continues
// undisturbed.
void Place(FileDescriptor file, int& descriptor) {
  if (descriptor < 0) {
    descriptor = file.Release();
    return;
  }
  int placed = -1;
  do {
    placed = dup3(file.get(), descriptor, O_CLOEXEC);
  } while (placed < 0 && (errno == EINTR || errno == EBUSY));
  // Otherwise it fails only for descriptors that are not open.
  COHORT_CHECK(placed >= 0, std::strerror(errno));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckedFiles>> CheckedFiles::Create(
    const TlsContent& content) {
  std::unique_ptr<CheckedFiles> files(new CheckedFiles);
  COHORT_RETURN_IF_ERROR(files->Replace(content));
  return files;
}

absl::Status CheckedFiles::Replace(const TlsContent& content) {
  COHORT_ASSIGN_OR_RETURN(FileDescriptor ca, NewFile(content.ca));
  if (content.cert.empty()) {
    Place(std::move(ca), ca_);
    return absl::OkStatus();
  }
  COHORT_ASSIGN_OR_RETURN(
      FileDescriptor own,
      NewFile(absl::StrCat(content.cert, "\n", content.key)));
  Place(std::move(ca), ca_);
  Place(std::move(own), cert_and_key_);
  return absl::OkStatus();
}

std::string CheckedFiles::PathOf(int descriptor) {
  return descriptor < 0 ? std::string()
                        : absl::StrCat("/proc/self/fd/", descriptor);
}

}  // namespace cohort
