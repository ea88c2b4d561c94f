#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

struct ListenAddress {
  // As written; an IPv6 address keeps its brackets. Empty for a Unix socket.
  std::string host;
  int port = 0;
  // The path of a Unix socket, or "@" and an abstract name. Empty for TCP.
  std::string socket;

  bool is_unix() const { return !socket.empty(); }
  // True if only processes of this machine can reach it.
  bool loopback() const;
  std::string ToString() const;
};

// Reads host:port.
// Errors: InvalidArgument naming `flag`, such as "--ops_listen".
absl::StatusOr<ListenAddress> ParseHostPort(absl::string_view flag,
                                            absl::string_view text);

// Reads host:port, unix:/path or unix-abstract:name. A path must begin with /,
// because the processes of a run may have different working folders.
// Errors: InvalidArgument naming `flag`, such as "--listen".
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view flag,
                                                 absl::string_view text);

// True if `text` is meant as a Unix socket, even if it cannot be read as one.
bool IsUnixAddress(absl::string_view text);

// Checks whether processes can connect to it: what ParseListenAddress reads, or
// one of gRPC's names with a scheme (dns, ipv4, ipv6), which gRPC parses.
// Errors: InvalidArgument naming `flag`.
absl::Status CheckServerAddress(absl::string_view flag, absl::string_view text);

// The URL that a browser on this machine opens for a listening address. "All
// addresses" (0.0.0.0 and [::]) is replaced, because a browser cannot open it.
std::string UrlHere(absl::string_view address, bool encrypted = false);

// Refuses an address that other machines can reach unless `insecure` allows it.
// `risk` is what everyone on that network may then do.
// Errors: InvalidArgument naming `flag`.
absl::Status CheckExposure(absl::string_view flag, const ListenAddress& address,
                           bool insecure, absl::string_view risk);

}  // namespace cohort
