#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace cohort {

// Excludes other processes that look at, make or remove sockets in a folder. It
// leaves no file there, and ends with this object or with the process.
class FolderLock {
 public:
  // Waits a few seconds for another process. Errors: Unavailable with the
  //   reason, such as that there is no such folder.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace cohort
