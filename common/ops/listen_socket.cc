#include "common/ops/listen_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/unix_address.h"

namespace cohort {
namespace {

// Connections that wait while the process is busy; the kernel has a limit too.
constexpr int kBacklog = 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

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

std::string Unbracketed(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

absl::StatusOr<Addresses> Resolve(absl::string_view flag,
                                  const ListenAddress& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(Unbracketed(address.host).c_str(),
                  std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) return CannotListen(flag, address, gai_strerror(error));
  return Addresses(list);
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
  absl::StatusOr<Addresses> found = Resolve(flag, address);
  if (!found.ok()) return found.status();
  const addrinfo& first = **found;
  ListenSocket socket(
      ::socket(first.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd_ < 0) return CannotListen(flag, address, errno);
  // A restarted server need not wait for old connections to time out.
  const int on = 1;
  setsockopt(socket.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.fd_, first.ai_addr, first.ai_addrlen) != 0 ||
      listen(socket.fd_, kBacklog) != 0) {
    return CannotListen(flag, address, errno);
  }
  address.port = PortOf(socket.fd_);
  return socket;
}

absl::StatusOr<ListenSocket> ListenSocket::OpenUnix(
    absl::string_view flag, const ListenAddress& address) {
  ListenSocket socket(
      ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd_ < 0) return CannotListen(flag, address, std::strerror(errno));
  if (!IsAbstractSocket(address.socket)) {
    absl::StatusOr<SocketFile> file =
        SocketFile::Listen(socket.fd_, address.socket, kBacklog);
    if (!file.ok()) {
      return CannotListen(flag, address, file.status().message());
    }
    socket.file_ = *std::move(file);
    return socket;
  }
  socket.own_user_only_ = true;
  const absl::StatusOr<UnixAddress> name = UnixAddressOf(address.socket);
  if (!name.ok()) return CannotListen(flag, address, name.status().message());
  if (bind(socket.fd_, name->get(), name->size) != 0 ||
      listen(socket.fd_, kBacklog) != 0) {
    return CannotListen(flag, address,
                        errno == EADDRINUSE
                            ? "the name is in use: another process listens "
                              "there; choose another name"
                            : std::strerror(errno));
  }
  return socket;
}

ListenSocket::ListenSocket(ListenSocket&& other) noexcept
    : fd_(other.Release()),
      own_user_only_(other.own_user_only_),
      file_(std::move(other.file_)) {}

ListenSocket::~ListenSocket() {
  // First: as long as the socket listens, no other process takes its place.
  file_ = SocketFile();
  if (fd_ >= 0) close(fd_);
}

int ListenSocket::Release() { return std::exchange(fd_, -1); }

}  // namespace cohort
