#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/file_descriptor.h"

namespace cohort {

// A file in memory that another process can map by its descriptor, mapped into
// this one. It has no name in the file system, so nothing is left of it when
// the last process that has it ends.
//
// Its size is sealed: no process can shrink it and so kill another one that
// reads behind the new end.
//
// Thread safety: none; the memory is the caller's to synchronise.
class SharedMemory {
 public:
  enum class Writer {
    // The creator; all others can only read.
    kCreator,
    // All processes but the creator, which can only read.
    kOthers,
  };

  // The contents are zeros. `name` is shown in /proc/PID/maps.
  // Errors: ResourceExhausted with the reason of the system.
  static absl::StatusOr<SharedMemory> Create(const char* name, int64_t bytes,
                                             Writer writer);
  // Maps a file that another process created, to read or also to write.
  // Errors: InvalidArgument unless its size is `bytes` and sealed;
  //   ResourceExhausted as in Create.
  static absl::StatusOr<SharedMemory> Map(FileDescriptor file, int64_t bytes,
                                          bool writable);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  int fd() const { return file_.get(); }
  int64_t size_bytes() const { return static_cast<int64_t>(bytes_.size()); }
  absl::Span<const std::byte> bytes() const { return bytes_; }
  // Writing needs the right to write.
  absl::Span<std::byte> writable_bytes() { return bytes_; }

 private:
  SharedMemory(FileDescriptor file, absl::Span<std::byte> bytes)
      : file_(std::move(file)), bytes_(bytes) {}

  FileDescriptor file_;
  absl::Span<std::byte> bytes_;
};

}  // namespace cohort
