#include "server/rpc/accept_loop.h"

#include <fcntl.h>
#include <grpcpp/server_builder.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "common/unix_address.h"
#include "common/wire/channel.h"

namespace cohort {
namespace {

// Limit between two checks of whether the object is being destroyed.
constexpr int kAcceptsAtOnce = 64;
// Pause while the kernel has no memory for a connection.
constexpr int kNoMemoryPauseMs = 100;

FileDescriptor OpenSpare() {
  return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// Sets the same options as gRPC's own listener.
void SetOptions(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const unsigned int timeout_ms = kBulkKeepaliveTimeoutMs;
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
             sizeof(timeout_ms));
}

}  // namespace

AcceptLoop::AcceptLoop(
    ListenSocket socket,
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server,
    int64_t files_max, int32_t each_max)
    : listen_(std::move(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spare_(OpenSpare()),
      files_max_(files_max),
      server_(std::move(server)),
      by_address_(each_max) {
  COHORT_CHECK(wake_.valid(), "eventfd failed");
  task_ = std::make_unique<PeriodicTask>("accept", absl::ZeroDuration(),
                                         [this] { AcceptSome(); });
}

AcceptLoop::~AcceptLoop() {
  const uint64_t one = 1;
  // Cannot fail: the counter is far from full.
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
  task_.reset();
}

void AcceptLoop::AcceptSome() {
  pollfd waited[] = {{.fd = listen_.fd(), .events = POLLIN, .revents = 0},
                     {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  if (poll(waited, 2, -1) <= 0 || waited[1].revents != 0) return;
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    if (!AcceptOne()) return;
  }
}

bool AcceptLoop::AcceptOne() {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  const int fd = accept4(listen_.fd(), reinterpret_cast<sockaddr*>(&peer),
                         &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0 && fd < files_max_) {
    const absl::Status user = CheckUser(fd);
    if (!user.ok()) {
      Refuse(fd, user.message());
      return true;
    }
    const std::string address = LimitedAddress(peer);
    if (!by_address_.Add(address, fd)) {
      Refuse(fd, absl::StrCat(address,
                              " has reached the limit of "
                              "--connections_per_address"));
      return true;
    }
    SetOptions(fd);
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
        connection;
    connection.listener_fd = listen_.fd();
    connection.fd = fd;
    server_->HandleNewConnection(&connection);
    return true;
  }
  if (fd >= 0) {
    Refuse(fd, NoFiles());
    return true;
  }
  switch (errno) {
    case EINTR:
    case ECONNABORTED:
      return true;
    case EMFILE:
    case ENFILE:
      spare_.Close();
      Refuse(accept4(listen_.fd(), nullptr, nullptr, SOCK_CLOEXEC), NoFiles());
      spare_ = OpenSpare();
      return true;
    case ENOBUFS:
    case ENOMEM:
      poll(nullptr, 0, kNoMemoryPauseMs);
      return false;
    default:
      return false;
  }
}

absl::Status AcceptLoop::CheckUser(int fd) const {
  if (!listen_.own_user_only()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(const uint32_t user, PeerUserOf(fd));
  if (user == geteuid() || user == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("got a process of user ", user, ", want one of user ",
                   geteuid(), ", as the server is"));
}

std::string AcceptLoop::NoFiles() const {
  return absl::StrCat(
      "all ", files_max_,
      " open files for connections are in use; raise the limit on open files "
      "(ulimit -Hn, LimitNOFILE=)");
}

void AcceptLoop::Refuse(int fd, absl::string_view reason) {
  if (fd < 0) return;
  close(fd);
  const int64_t refused = refused_.fetch_add(1, std::memory_order_relaxed) + 1;
  // The log limits repeated lines.
  Log(LogLevel::kWarning,
      absl::StrCat("a connection was refused: ", reason,
                   "; connections refused so far: ", refused));
}

}  // namespace cohort
