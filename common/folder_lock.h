#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/file_descriptor.h"

namespace cohort {

// Excludes other processes that look at, make or remove sockets in a folder. It
// leaves no file there, and ends with this object or with the process.
class FolderLock {
 public:
  // Waits a few seconds for another process. Errors: Unavailable with the
  //   reason, such as that there is no such folder.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);

 private:
  explicit FolderLock(FileDescriptor folder) : folder_(std::move(folder)) {}

  FileDescriptor folder_;
};

}  // namespace cohort
