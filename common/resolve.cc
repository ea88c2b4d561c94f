#include "common/resolve.h"

#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"

namespace cohort {

absl::StatusOr<Addresses> Resolve(const ListenAddress& address, int flags) {
  std::string host = address.host;
  // An IPv6 address stands in brackets.
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(
      host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return Addresses(list);
}

}  // namespace cohort
