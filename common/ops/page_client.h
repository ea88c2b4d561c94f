#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cohort {

struct Page {
  // The HTTP status code.
  int status = 0;
  std::string body;
};

// Gets a page of an operations port over plain HTTP. Meant for a health check
// in an image without another client. Tries every address of the name in turn.
// Errors:
//   InvalidArgument   `address` is not host:port.
//   Unavailable       no answer there; not HTTP; more than 1 MiB.
//   DeadlineExceeded  the page was not complete within `timeout`.
absl::StatusOr<Page> FetchPage(absl::string_view address,
                               absl::string_view path, absl::Duration timeout);

}  // namespace cohort
