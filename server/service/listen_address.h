#pragma once

#include <string>

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
// Errors: InvalidArgument naming --listen.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

}  // namespace cohort
