#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cohort {

// A file of a bundle, or why it is not there.
struct BundlePart {
  // Path within the bundle, such as "logs/server.log".
  std::string name;
  // What it is, for people.
  std::string about;
  std::string content;
  // Empty: it is there.
  std::string problem;
};

// The last `bytes_max` bytes of a text file, from the beginning of a line.
// Errors: NotFound, PermissionDenied or FailedPrecondition, with the path:
//   there is no such file, it cannot be read, it is no file.
absl::StatusOr<std::string> EndOfFile(const std::string& path,
                                      int64_t bytes_max);

// contents.txt: what is in a bundle, what is missing and why, and what to mind
// before it is given away.
std::string ContentsText(absl::Span<const BundlePart> parts);

// Writes the parts that are there into a compressed archive that only its owner
// may read; they lie in a folder called as the file is. It is put in place as a
// whole, over what was there, or not at all. Needs `tar`, which every Debian
// has; no library of the project's writes archives.
// Returns its size.
// Errors: InvalidArgument: the file cannot be there; Internal: `tar` failed, in
//   its words; those of FileSystem, of a disk that is full for example.
absl::StatusOr<int64_t> WriteBundle(const std::string& path,
                                    absl::Span<const BundlePart> parts);

}  // namespace cohort
