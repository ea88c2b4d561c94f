#include "common/local/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status Failed(const char* what, int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory: ", what, " of ", bytes,
                   " bytes failed: ", std::strerror(errno)));
}

absl::StatusOr<absl::Span<std::byte>> MapFile(const FileDescriptor& file,
                                              int64_t bytes, bool writable) {
  const auto size = static_cast<size_t>(bytes);
  void* const at =
      mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ,
           MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return Failed("mmap", bytes);
  return absl::MakeSpan(static_cast<std::byte*>(at), size);
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(const char* name,
                                                  int64_t bytes,
                                                  Writer writer) {
  FileDescriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Failed("memfd_create", bytes);
  if (ftruncate(file.get(), bytes) != 0) return Failed("ftruncate", bytes);
  const bool own = writer == Writer::kCreator;
  COHORT_ASSIGN_OR_RETURN(const absl::Span<std::byte> memory,
                          MapFile(file, bytes, own));
  SharedMemory shared(std::move(file), memory);
  // The mapping above stays writable.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                    (own ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(shared.fd(), F_ADD_SEALS, seals) != 0) {
    return Failed("sealing", bytes);
  }
  return shared;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(FileDescriptor file,
                                               int64_t bytes, bool writable) {
  struct stat status {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  // Without the seal the other process could end this one by truncating the
  // file that it has mapped.
  if (bytes <= 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      fstat(file.get(), &status) != 0 || status.st_size != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: got a file of ", status.st_size,
                     " bytes with the seals ", seals, ", want ", bytes,
                     " bytes, above 0, sealed against shrinking"));
  }
  COHORT_ASSIGN_OR_RETURN(const absl::Span<std::byte> memory,
                          MapFile(file, bytes, writable));
  return SharedMemory(std::move(file), memory);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)),
      bytes_(std::exchange(other.bytes_, absl::Span<std::byte>())) {}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace cohort
