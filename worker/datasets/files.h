#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort {

// Files of data sets: read once, links followed.
//
// Errors: NotFound missing, Internal cannot be read; the path and the
//   system's text are in the message.

// The whole file.
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
