#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"

namespace cohort {

// Every effect on files that must survive a crash goes through here, so that
// a test can make any of them fail.
//
// Errors: NotFound, PermissionDenied, ResourceExhausted (disk or quota full),
//   DataLoss (a file that shrinks while it is read), Internal for the rest,
//   each with the path and the system's text.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates or replaces a file with these bytes and makes them durable.
  // `mode` as for open(2). Links are not followed.
  virtual absl::Status WriteFile(const std::string& path, int mode,
                                 absl::Span<const ByteRope> content) = 0;
  // Creates one directory; no error if it exists.
  virtual absl::Status MakeDirectory(const std::string& path, int mode) = 0;
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;
  // Makes creations, renames and removals in a directory durable.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Removes a file or a whole tree; no error if it does not exist.
  virtual absl::Status RemoveAll(const std::string& path) = 0;

  // Names in a directory, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) = 0;
  // The whole file, read into memory. Anything but a regular file is refused
  // without waiting for it, and the size is checked before memory is allocated.
  // Links are not followed.
  // Errors also: DataLoss if it is not a regular file or is larger than
  //   `bytes_max`; ResourceExhausted if it is larger than the machine's memory.
  virtual absl::StatusOr<ByteRope> ReadFile(const std::string& path,
                                            int64_t bytes_max) = 0;
};

// For ReadFile: limits the size only by the machine's memory.
inline constexpr int64_t kAnyFileSize = INT64_MAX;

// Passes the bytes of a file to `take` in pieces of about 1 MiB, in order.
// Errors: those of FileSystem::ReadFile, except for the machine's memory.
absl::Status ReadFileInPieces(
    const std::string& path, int64_t bytes_max,
    absl::FunctionRef<void(absl::Span<const std::byte>)> take);

// Check for files that are then opened for writing by other means: opening a
// pipe without a reader would wait forever.
// Errors: FailedPrecondition if `path` is a pipe or a socket.
absl::Status CheckNoPipe(const std::string& path);

// Thread safety: safe.
FileSystem& RealFileSystem();

// Mode of results that everyone may read.
inline constexpr int kPublicFileMode = 0644;

// Writes a temporary file beside `path`, then renames it: readers see the old
// content or the new one, never a part. On failure the temporary file is
// removed if possible. Only one writer may use a path at a time.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 int mode, absl::Span<const ByteRope> content);
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 int mode, absl::string_view content);

}  // namespace cohort
