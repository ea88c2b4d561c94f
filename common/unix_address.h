#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace cohort {

// The system's form of the name of a Unix socket.
struct UnixAddress {
  sockaddr_un name{};
  socklen_t size = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&name);
  }
};

// True for "@" and an abstract name, which exists as long as the socket does,
// in one network namespace; else `name` is a path.
bool IsAbstractSocket(const std::string& name);

// Errors: InvalidArgument if the name is empty or longer than the system
//   permits.
absl::StatusOr<UnixAddress> UnixAddressOf(const std::string& name);

// The user of the process at the other end of a connected Unix socket, as the
// kernel knows it. Errors: Internal.
absl::StatusOr<uint32_t> PeerUserOf(int fd);

}  // namespace cohort
