#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort {

// Files of data sets: read once, links followed.
//
// Errors: NotFound missing, DataLoss no regular file or absurdly large,
// Internal
//   cannot be read; the path, and the system's text if there is one, are in the
//   message.

// Opens a regular file for reading, without waiting for what is none; the
// caller closes the descriptor.
absl::StatusOr<int> OpenRegularFile(const std::string& path,
                                    int64_t* size_bytes);

// The whole file, of at most 1 GiB.
absl::StatusOr<std::vector<uint8_t>> ReadBytes(const std::string& path);

// Its lines without the blanks around them; empty ones are left out.
absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path);

// Names in a folder, sorted, without those that begin with a dot.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

bool IsFile(const std::string& path);
bool IsFolder(const std::string& path);

// Errors: InvalidArgument no folder was given, NotFound it is missing; each
//   says that --data_dir names it and what is wanted there.
absl::Status CheckDataDir(const std::string& dataset, const std::string& dir,
                          const std::string& wanted);

}  // namespace cohort
