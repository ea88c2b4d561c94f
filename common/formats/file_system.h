#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  // One directory; no error if it exists.
  virtual absl::Status MakeDirectory(const std::string& path, int mode) = 0;
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;
  // Makes creations, renames and removals in a directory durable.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // A file or a whole tree; no error if it does not exist.
  virtual absl::Status RemoveAll(const std::string& path) = 0;

  // Names in a directory, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) = 0;
  // The whole file, read into memory. Anything but a regular file is refused
  // without waiting for it, and its size is looked at before memory is taken.
  // Links are not followed.
  // Errors also: DataLoss if it is no regular file or larger than `bytes_max`;
  //   ResourceExhausted if it is larger than the machine's memory.
  virtual absl::StatusOr<ByteRope> ReadFile(const std::string& path,
                                            int64_t bytes_max) = 0;
};

// For ReadFile: the machine's memory is the only limit.
inline constexpr int64_t kAnyFileSize = INT64_MAX;

// Gives `take` the bytes of a file in pieces of about 1 MiB, in order.
// Errors: those of FileSystem::ReadFile but for the machine's memory.
absl::Status ReadFileInPieces(
    const std::string& path, int64_t bytes_max,
    absl::FunctionRef<void(absl::Span<const std::byte>)> take);

// For files that are opened by other means, to be written: opening a pipe that
// nobody reads would wait without end.
// Errors: FailedPrecondition if `path` is a pipe or a socket.
absl::Status CheckNoPipe(const std::string& path);

// Thread safety: safe.
FileSystem& RealFileSystem();

// Results that everybody may read.
inline constexpr int kPublicFileMode = 0644;

// Writes beside `path` under a temporary name, then renames: readers see the
// old content or the new one, never a part. On failure the temporary file is
// removed if possible. One writer a path at a time.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 int mode, absl::Span<const ByteRope> content);

}  // namespace cohort
