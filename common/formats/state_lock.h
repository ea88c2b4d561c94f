#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/file_descriptor.h"

namespace cohort {

// Locks a directory for one process, so that two servers, or two studies,
// never write to the same state. The lock ends with this object or with the
// process, even if it is killed.
class StateLock {
 public:
  // `name` is the lock file's name in `dir`. The file says which process holds
  // the lock.
  // Errors: FailedPrecondition: another process holds it, with its number and
  //   machine if they can be read; NotFound or PermissionDenied: the lock file
  //   cannot be created.
  static absl::StatusOr<std::unique_ptr<StateLock>> Acquire(
      const std::string& dir, absl::string_view name = "lock");

 private:
  explicit StateLock(FileDescriptor file) : file_(std::move(file)) {}

  const FileDescriptor file_;
};

}  // namespace cohort
