#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace cohort {

// A file of a bundle, or why it is missing.
struct BundlePart {
  // Path within the bundle, such as "logs/server.log".
  std::string name;
  // A description for people.
  std::string about;
  std::string content;
  // Why it is missing; empty if it is present.
  std::string problem;
};

// The last `bytes_max` bytes of a text file, starting at the beginning of a
// line.
// Errors: NotFound, PermissionDenied or FailedPrecondition, with the path: the
//   file does not exist, cannot be read, or is not a regular file.
absl::StatusOr<std::string> EndOfFile(const std::string& path,
                                      int64_t bytes_max);

// contents.txt: what is in a bundle, what is missing and why, and what to check
// before it is shared.
std::string ContentsText(absl::Span<const BundlePart> parts);

// Writes the available parts into a compressed archive that only its owner may
// read, inside a folder with the archive's name. The archive is put in place as
// a whole, replacing an existing file, or not at all. Needs `tar`, which every
// Debian has; no library of the project writes archives.
// Returns its size.
// Errors: InvalidArgument: the file cannot be created there; Internal: `tar`
//   failed, with its message; those of FileSystem, such as a full disk.
absl::StatusOr<int64_t> WriteBundle(const std::string& path,
                                    absl::Span<const BundlePart> parts);

}  // namespace cohort
