#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  // The whole file, read into memory.
  virtual absl::StatusOr<ByteRope> ReadFile(const std::string& path) = 0;
};

// Thread safety: safe.
FileSystem& RealFileSystem();

// Writes beside `path` under a temporary name, then renames: readers see the
// old content or the new one, never a part. On failure the temporary file is
// removed if possible. One writer a path at a time.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 int mode, absl::Span<const ByteRope> content);

}  // namespace cohort
