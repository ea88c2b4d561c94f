#include "common/ops/listen_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/resolve.h"
#include "common/unix_address.h"

namespace cohort {
namespace {

// Connections that wait while the process is busy; the kernel has a limit too.
constexpr int kBacklog = 1024;

absl::Status CannotListen(absl::string_view flag, const ListenAddress& address,
                          absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat(flag, ": cannot listen on ", address.ToString(), ": ", why));
}

absl::Status CannotListen(absl::string_view flag, const ListenAddress& address,
                          int error) {
  switch (error) {
    case EADDRINUSE:
      return CannotListen(
          flag, address,
          absl::StrCat("another process uses the port; pass ", flag, "=",
                       address.host, ":0 for a free one, or ", flag,
                       "= for none"));
    case EADDRNOTAVAIL:
      return CannotListen(flag, address,
                          "the address does not belong to this machine");
    case EACCES:
      return CannotListen(flag, address,
                          "ports below 1024 need privileges; choose another");
    default:
      return CannotListen(flag, address, std::strerror(error));
  }
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return 0;
  }
  return ntohs(bound.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

}  // namespace

absl::StatusOr<ListenSocket> ListenSocket::Open(absl::string_view flag,
                                                ListenAddress& address) {
  if (address.is_unix()) return OpenUnix(flag, address);
  const absl::StatusOr<Addresses> found = Resolve(address, AI_PASSIVE);
  if (!found.ok()) return CannotListen(flag, address, found.status().message());
  const addrinfo& first = **found;
  ListenSocket socket(
      ::socket(first.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.fd_.valid()) return CannotListen(flag, address, errno);
  // A restarted server need not wait for old connections to time out.
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.fd(), first.ai_addr, first.ai_addrlen) != 0 ||
      listen(socket.fd(), kBacklog) != 0) {
    return CannotListen(flag, address, errno);
  }
  address.port = PortOf(socket.fd());
  return socket;
}

absl::StatusOr<ListenSocket> ListenSocket::OpenUnix(
    absl::string_view flag, const ListenAddress& address) {
  ListenSocket socket(
      ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.fd_.valid())
    return CannotListen(flag, address, std::strerror(errno));
  if (!IsAbstractSocket(address.socket)) {
    absl::StatusOr<SocketFile> file =
        SocketFile::Listen(socket.fd(), address.socket, kBacklog);
    if (!file.ok()) {
      return CannotListen(flag, address, file.status().message());
    }
    socket.file_ = *std::move(file);
    return socket;
  }
  socket.own_user_only_ = true;
  const absl::StatusOr<UnixAddress> name = UnixAddressOf(address.socket);
  if (!name.ok()) return CannotListen(flag, address, name.status().message());
  if (bind(socket.fd(), name->get(), name->size) != 0 ||
      listen(socket.fd(), kBacklog) != 0) {
    return CannotListen(flag, address,
                        errno == EADDRINUSE
                            ? "the name is in use: another process listens "
                              "there; choose another name"
                            : std::strerror(errno));
  }
  return socket;
}

}  // namespace cohort
