#include "common/unix_address.h"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cohort {

bool IsAbstractSocket(const std::string& name) {
  return absl::StartsWith(name, "@");
}

absl::StatusOr<UnixAddress> UnixAddressOf(const std::string& name) {
  UnixAddress address;
  if (name.empty() || name.size() >= sizeof(address.name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got a socket name of ", name.size(), " bytes (", name, "), want 1 to ",
        sizeof(address.name.sun_path) - 1, ", the limit of the system"));
  }
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path, name.data(), name.size());
  // The system takes a first byte of zero for an abstract name, and its length
  // from that of the address.
  if (IsAbstractSocket(name)) address.name.sun_path[0] = '\0';
  address.size = static_cast<socklen_t>(
      IsAbstractSocket(name) ? offsetof(sockaddr_un, sun_path) + name.size()
                             : sizeof(address.name));
  return address;
}

absl::StatusOr<uint32_t> PeerUserOf(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::InternalError(
        absl::StrCat("SO_PEERCRED: ", std::strerror(errno)));
  }
  return peer.uid;
}

}  // namespace cohort
