#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/security/tls_files.h"

namespace cohort {

// A connection of a client, plain or encrypted, that closes itself and times
// out at a deadline. Every error names the address.
//
// Errors of all methods: Unavailable with the reason; DeadlineExceeded.
// Thread safety: none.
class ClientConnection {
 public:
  // `address` is host:port or a Unix socket. `flag` names it in errors.
  ClientConnection(absl::string_view flag, absl::string_view address,
                   Instant deadline);
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;
  ~ClientConnection();

  // Connects to the first address of the name that takes a connection.
  // Errors also: InvalidArgument: the address cannot be read.
  absl::Status Open();

  // Encrypts everything from now on. The peer's certificate must be valid, and
  // one of the own run if there is an own certificate. `protocol` is offered by
  // ALPN, such as "h2"; none if empty.
  // Errors also: Unauthenticated: the peer's certificate is not accepted.
  absl::Status Encrypt(const TlsContent& tls, absl::string_view protocol = "");
  // Whether the peer answers a handshake, whatever its certificate is; the
  // connection cannot be used afterwards.
  bool AnswersHandshake();

  // The user of the server, if it is connected through a Unix socket.
  // Errors: Internal.
  absl::StatusOr<uint32_t> PeerUser() const;

  absl::Status Send(absl::string_view bytes);
  // The number of bytes read; 0 at the end.
  absl::StatusOr<size_t> Read(absl::Span<char> into);

 private:
  class Tls;

  absl::Status Connect(const sockaddr* address, socklen_t size);
  absl::Status Named(const absl::Status& status) const;
  absl::Status Late() const;
  absl::Status Failed() const;
  // Sets the timeouts to the time left until the deadline.
  absl::Status SetTimeouts();

  const std::string flag_;
  const std::string address_;
  const SteadyClock clock_{};
  const Instant deadline_;
  FileDescriptor fd_;
  // Null until Encrypt.
  std::unique_ptr<Tls> tls_;
};

}  // namespace cohort
