#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/security/tls_files.h"

namespace cohort {

// The client's side of TLS over a connected, blocking socket.
//
// Errors of all methods: Unavailable with the reason; DeadlineExceeded: the
// socket's timeout has passed.
// Thread safety: none.
class TlsStream {
 public:
  virtual ~TlsStream() = default;

  // Shakes hands on `fd`, which must outlive the stream. The peer's certificate
  // must be valid, and one of the own run if there is an own certificate.
  // `protocol` is offered by ALPN, such as "h2"; none if empty.
  // Errors also: Unauthenticated: the peer's certificate is not accepted.
  static absl::StatusOr<std::unique_ptr<TlsStream>> Connect(
      int fd, const TlsContent& tls, absl::string_view protocol = "");

  // Whether the peer answers a handshake on `fd`, whatever its certificate is.
  static bool AnswersHandshake(int fd);

  virtual absl::Status Send(absl::string_view bytes) = 0;
  // The number of bytes read; 0 at the end.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> into) = 0;
};

}  // namespace cohort
