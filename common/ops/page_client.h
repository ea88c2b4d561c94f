#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cohort {

struct Page {
  // HTTP's.
  int status = 0;
  std::string body;
};

// Gets a page of an operations port over plain HTTP: enough for a health check
// in an image that has no other client. Tries every address of the name in
// turn.
// Errors:
//   InvalidArgument   `address` is not host:port.
//   Unavailable       nobody answers there; it is not HTTP; more than 1 MiB.
//   DeadlineExceeded  not all of it came within `timeout`.
absl::StatusOr<Page> FetchPage(absl::string_view address,
                               absl::string_view path, absl::Duration timeout);

}  // namespace cohort
