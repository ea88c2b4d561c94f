#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_descriptor.h"

namespace cohort {

// Files of data sets: read once, links followed.
//
// Errors: NotFound missing; DataLoss not a regular file or absurdly large;
//   Internal cannot be read. The message has the path, and the system's text if
//   there is one.

// Opens a regular file for reading. Does not block on other kinds of file.
absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path,
                                               int64_t* size_bytes);

// The whole file, of at most 1 GiB.
absl::StatusOr<std::vector<uint8_t>> ReadBytes(const std::string& path);

// The file's lines, trimmed, without empty ones.
absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path);

// Names in a folder, sorted, without those that begin with a dot.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

bool IsFile(const std::string& path);
bool IsFolder(const std::string& path);

// Errors: InvalidArgument no folder was given, NotFound it is missing; each
//   says that --data_dir names it and what it must contain.
absl::Status CheckDataDir(const std::string& dataset, const std::string& dir,
                          const std::string& wanted);

}  // namespace cohort
