#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Holds a directory for one process, so that two servers never write into
// the same state. The lock ends with this object or with the process,
// however it dies.
class StateLock {
 public:
  // `name`: of the lock file in `dir`, which says which process holds it.
  // Errors: FailedPrecondition: another process holds it, with its number and
  //   machine if they can be read; NotFound or PermissionDenied: the lock file
  //   cannot be made.
  static absl::StatusOr<std::unique_ptr<StateLock>> Acquire(
      const std::string& dir, absl::string_view name = "lock");
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;
  ~StateLock();

 private:
  explicit StateLock(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace cohort
