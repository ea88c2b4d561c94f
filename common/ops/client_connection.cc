#include "common/ops/client_connection.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "common/unix_address.h"

namespace cohort {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

std::string Unbracketed(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

absl::StatusOr<Addresses> Resolve(const ListenAddress& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(Unbracketed(address.host).c_str(),
                  std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), ": ", gai_strerror(error)));
  }
  return Addresses(list);
}

}  // namespace

ClientConnection::ClientConnection(absl::string_view flag,
                                   absl::string_view address, Instant deadline)
    : flag_(flag), address_(address), deadline_(deadline) {}

ClientConnection::~ClientConnection() { Close(); }

void ClientConnection::Close() {
  tls_.reset();
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::Status ClientConnection::Open() {
  COHORT_ASSIGN_OR_RETURN(const ListenAddress parsed,
                          ParseListenAddress(flag_, address_));
  if (parsed.is_unix()) {
    COHORT_ASSIGN_OR_RETURN(const UnixAddress name,
                            UnixAddressOf(parsed.socket));
    return Connect(name.get(), name.size);
  }
  COHORT_ASSIGN_OR_RETURN(const Addresses found, Resolve(parsed));
  absl::Status status;
  for (const addrinfo* to = found.get(); to != nullptr; to = to->ai_next) {
    status = Connect(to->ai_addr, to->ai_addrlen);
    if (status.ok()) return status;
  }
  return status;
}

absl::StatusOr<uint32_t> ClientConnection::PeerUser() const {
  return PeerUserOf(fd_);
}

absl::Status ClientConnection::Connect(const sockaddr* address,
                                       socklen_t size) {
  Close();
  fd_ = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return Failed();
  COHORT_RETURN_IF_ERROR(SetTimeouts());
  // On Linux the send timeout also limits connect.
  return connect(fd_, address, size) == 0 ? absl::OkStatus() : Failed();
}

absl::Status ClientConnection::Encrypt(const TlsContent& tls,
                                       absl::string_view protocol) {
  COHORT_RETURN_IF_ERROR(SetTimeouts());
  absl::StatusOr<std::unique_ptr<TlsStream>> stream =
      TlsStream::Connect(fd_, tls, protocol);
  if (!stream.ok()) return Named(stream.status());
  tls_ = *std::move(stream);
  return absl::OkStatus();
}

bool ClientConnection::AnswersHandshake() {
  return SetTimeouts().ok() && TlsStream::AnswersHandshake(fd_);
}

absl::Status ClientConnection::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    COHORT_RETURN_IF_ERROR(SetTimeouts());
    if (tls_ != nullptr) return Named(tls_->Send(bytes));
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0) return Failed();
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ClientConnection::Read(absl::Span<char> into) {
  COHORT_RETURN_IF_ERROR(SetTimeouts());
  if (tls_ != nullptr) {
    absl::StatusOr<size_t> read = tls_->Read(into);
    if (!read.ok()) return Named(read.status());
    return read;
  }
  const ssize_t n = recv(fd_, into.data(), into.size(), 0);
  if (n < 0) return Failed();
  return static_cast<size_t>(n);
}

absl::Status ClientConnection::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(address_, ": ", status.message()));
}

absl::Status ClientConnection::Late() const {
  return absl::DeadlineExceededError(
      absl::StrCat(address_, ": no answer in time"));
}

absl::Status ClientConnection::SetTimeouts() {
  const absl::Duration left = deadline_ - clock_.Now();
  if (left <= absl::ZeroDuration()) return Late();
  // Zero would mean no timeout.
  const timeval limit = absl::ToTimeval(std::max(left, absl::Milliseconds(1)));
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  return absl::OkStatus();
}

absl::Status ClientConnection::Failed() const {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS) {
    return Late();
  }
  return absl::UnavailableError(
      absl::StrCat(address_, ": ", std::strerror(errno)));
}

}  // namespace cohort
