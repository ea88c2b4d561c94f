#include "common/ops/page_client.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/listen_address.h"
#include "common/ops/tls_stream.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr size_t kAnswerBytesMax = size_t{1} << 20;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// A connection that closes itself and times out at a deadline.
class Connection {
 public:
  Connection(absl::string_view address, Instant deadline)
      : address_(address), deadline_(deadline) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { Close(); }

  absl::Status Open(const addrinfo& to) {
    Close();
    fd_ = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return Failed();
    // On Linux the send timeout also limits connect.
    COHORT_RETURN_IF_ERROR(SetTimeouts());
    if (connect(fd_, to.ai_addr, to.ai_addrlen) != 0) return Failed();
    return absl::OkStatus();
  }

  // Encrypts everything from now on.
  absl::Status Encrypt(const TlsContent& tls) {
    COHORT_RETURN_IF_ERROR(SetTimeouts());
    absl::StatusOr<std::unique_ptr<TlsStream>> stream =
        TlsStream::Connect(fd_, tls);
    if (!stream.ok()) return Named(stream.status());
    tls_ = *std::move(stream);
    return absl::OkStatus();
  }

  absl::Status Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      COHORT_RETURN_IF_ERROR(SetTimeouts());
      if (tls_ != nullptr) return Named(tls_->Send(bytes));
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0) return Failed();
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadToEnd() {
    std::string all;
    char buffer[4096];
    for (;;) {
      COHORT_RETURN_IF_ERROR(SetTimeouts());
      COHORT_ASSIGN_OR_RETURN(const size_t n, Read(absl::MakeSpan(buffer)));
      if (n == 0) return all;
      all.append(buffer, n);
      if (all.size() > kAnswerBytesMax) {
        return absl::UnavailableError(
            absl::StrCat(address_, ": the answer is incomplete"));
      }
    }
  }

 private:
  void Close() {
    tls_.reset();
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  absl::StatusOr<size_t> Read(absl::Span<char> into) {
    if (tls_ != nullptr) {
      absl::StatusOr<size_t> read = tls_->Read(into);
      if (!read.ok()) return Named(read.status());
      return read;
    }
    const ssize_t n = recv(fd_, into.data(), into.size(), 0);
    if (n < 0) return Failed();
    return static_cast<size_t>(n);
  }

  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(address_, ": ", status.message()));
  }

  absl::Status Late() const {
    return absl::DeadlineExceededError(
        absl::StrCat(address_, ": no answer in time"));
  }

  // Sets the timeouts to the time left until the deadline.
  absl::Status SetTimeouts() {
    const absl::Duration left = deadline_ - clock_.Now();
    if (left <= absl::ZeroDuration()) return Late();
    // Zero would mean no timeout.
    const timeval limit =
        absl::ToTimeval(std::max(left, absl::Milliseconds(1)));
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    return absl::OkStatus();
  }

  absl::Status Failed() const {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS) {
      return Late();
    }
    return absl::UnavailableError(
        absl::StrCat(address_, ": ", std::strerror(errno)));
  }

  const std::string address_;
  const SteadyClock clock_{};
  const Instant deadline_;
  int fd_ = -1;
  // Null until Encrypt.
  std::unique_ptr<TlsStream> tls_;
};

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

absl::Status OpenAny(const addrinfo* list, Connection& connection) {
  absl::Status status;
  for (const addrinfo* to = list; to != nullptr; to = to->ai_next) {
    status = connection.Open(*to);
    if (status.ok()) return status;
  }
  return status;
}

absl::StatusOr<Page> ParsePage(absl::string_view address,
                               const std::string& answer) {
  Page page;
  const size_t end = answer.find("\r\n\r\n");
  if (!absl::StartsWith(answer, "HTTP/1.") || end == answer.npos ||
      !absl::SimpleAtoi(answer.substr(9, 3), &page.status)) {
    return absl::UnavailableError(
        absl::StrCat(address, ": the peer is not an HTTP server"));
  }
  page.body = answer.substr(end + 4);
  return page;
}

}  // namespace

absl::StatusOr<Page> FetchPage(const PageRequest& request) {
  const std::string& address = request.address;
  const Instant deadline = SteadyClock().Now() + request.timeout;
  COHORT_ASSIGN_OR_RETURN(const ListenAddress parsed,
                          ParseListenAddress("--ops", address));
  COHORT_ASSIGN_OR_RETURN(const TlsContent tls,
                          ReadTlsFiles(request.tls, absl::Now()));
  COHORT_ASSIGN_OR_RETURN(const Addresses found, Resolve(parsed));
  Connection connection(address, deadline);
  COHORT_RETURN_IF_ERROR(OpenAny(found.get(), connection));
  if (request.tls.encrypted()) {
    COHORT_RETURN_IF_ERROR(connection.Encrypt(tls));
  }
  const std::string authorization =
      request.token.empty()
          ? ""
          : absl::StrCat("Authorization: Bearer ", request.token, "\r\n");
  // HTTP/1.0: the answer ends with the connection and comes in one piece.
  COHORT_RETURN_IF_ERROR(connection.Send(
      absl::StrCat("GET ", request.path, " HTTP/1.0\r\nHost: ", address, "\r\n",
                   authorization, "\r\n")));
  COHORT_ASSIGN_OR_RETURN(const std::string answer, connection.ReadToEnd());
  return ParsePage(address, answer);
}

}  // namespace cohort
