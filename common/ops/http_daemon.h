#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ops/http_server.h"
#include "common/security/authenticator.h"
#include "common/security/tls_files.h"

namespace cohort {

struct HttpRequest {
  absl::string_view method;
  absl::string_view path;
  // Empty without such a header.
  absl::string_view host;
  // Empty over plain HTTP.
  Presented presented;
};

// Called on the daemon's only thread.
using HttpAnswer = std::function<HttpResponse(const HttpRequest&)>;

// Called on the same thread with the address of a client whose connection ended
// before its TLS handshake was complete.
using OnHandshakeFailure = std::function<void(const std::string& client)>;

// One HTTP/1.1 server over a listening socket, plain or with one certificate.
// The destructor ends all connections and joins the thread.
class HttpDaemon {
 public:
  virtual ~HttpDaemon() = default;

  // Accepts no more connections; those that are open go on until they are idle.
  virtual void StopAccepting() = 0;

  // Serves the socket `listen_fd`, which it takes over.
  // Errors: Unavailable with the reason.
  static absl::StatusOr<std::unique_ptr<HttpDaemon>> Start(
      int listen_fd, const std::optional<TlsContent>& tls, HttpAnswer answer,
      OnHandshakeFailure on_failure = nullptr);
};

}  // namespace cohort
