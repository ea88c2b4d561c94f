#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/tls_files.h"

namespace cohort {

struct Page {
  // The HTTP status code.
  int status = 0;
  std::string body;
};

struct PageRequest {
  // host:port of the operations port.
  std::string address;
  // Such as "/readyz".
  std::string path;
  absl::Duration timeout;
  // Empty: plain HTTP.
  TlsFiles tls;
  // A viewer's token; empty for none.
  std::string token;
};

// Gets a page of an operations port. Meant for a health check in an image
// without another client. Tries every address of the name in turn.
// Errors:
//   InvalidArgument   the address is not host:port, or a file cannot be used.
//   Unauthenticated   the certificate of the port is not accepted.
//   Unavailable       no answer there; not HTTP; more than 1 MiB.
//   DeadlineExceeded  the page was not complete within `timeout`.
absl::StatusOr<Page> FetchPage(const PageRequest& request);

}  // namespace cohort
