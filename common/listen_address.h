#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

struct ListenAddress {
  // As written; an IPv6 address keeps its brackets.
  std::string host;
  int port = 0;

  // Only processes of this machine can reach it.
  bool loopback() const;
  std::string ToString() const;
};

// Reads host:port.
// Errors: InvalidArgument naming `flag`, such as "--listen".
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view flag,
                                                 absl::string_view text);

// Refuses an address that other machines can reach unless `insecure` allows it.
// `risk` is what everyone on that network may then do.
// Errors: InvalidArgument naming `flag`.
absl::Status CheckExposure(absl::string_view flag, const ListenAddress& address,
                           bool insecure, absl::string_view risk);

}  // namespace cohort
