#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/security/authenticator.h"
#include "common/security/tls_files.h"

namespace cohort {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  // Sent instead of `body` if not empty, without a copy. Must outlive the
  // server.
  absl::string_view fixed_body;
};

// Called on the server's only thread, so a slow handler delays all other
// requests, but nothing else.
using HttpHandler = std::function<HttpResponse()>;

struct HttpServerOptions {
  // For errors: the flag that set `listen`.
  std::string flag = "--ops_listen";
  // host:port; port 0 takes a free one.
  std::string listen;
  // Allows an address that other machines can reach.
  bool insecure = false;
  // Handlers by path, such as "/metrics".
  std::map<std::string, HttpHandler> routes;
  // Certificate, key and authorities for HTTPS; absent: plain HTTP.
  std::optional<TlsContent> tls;
  // Whether a client may read a page; over HTTPS only. Null: every client.
  // Errors: Unauthenticated (answered with 401, or with 403 if no tokens are
  //   taken, since 401 makes a browser ask for a password), PermissionDenied
  //   (403).
  std::function<absl::Status(absl::string_view path, const Presented&)> admit;
  // Whether `admit` takes tokens. A browser is asked for one only then.
  bool takes_tokens = false;
  // Pages that every client may read.
  std::set<std::string> open_paths = {"/livez", "/readyz"};
};

// A small HTTP/1.1 server that shows one process to people and monitoring: GET
// and HEAD of fixed paths.
//
// One thread serves all connections and waits for none of them, so that slow
// clients cost only memory; connections, header bytes and idle time are
// limited. A new connection is always accepted: if there are too many, the one
// that has been idle longest is closed.
//
// On loopback, only requests whose Host names loopback are answered. Otherwise
// a web page open in a browser of this machine could read this server by
// pointing its own name at 127.0.0.1. The headers of every answer forbid
// framing, storing, guessing another content type, and scripts other than the
// server's own files.
class HttpServer {
 public:
  // Stops listening, ends all connections and joins the thread.
  virtual ~HttpServer() = default;
  // The listening address, with the actual port.
  virtual const std::string& address() const = 0;
  virtual bool encrypted() const = 0;
  // Connections that ended before their TLS handshake was complete.
  virtual int64_t handshake_failures() const = 0;
  // Serves new connections with this certificate from now on; open ones go on.
  // Only for a server that was started with one.
  // Errors: Unavailable: the certificate cannot be used; the one before stays.
  virtual absl::Status SetTls(const TlsContent& tls) = 0;
};

// Errors:
//   InvalidArgument  `listen` is not an address, or other machines can reach it
//                    and `insecure` is not set.
//   Unavailable      the address cannot be listened on; the message says why,
//                    and what to do.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    const HttpServerOptions& options);

// Checks only the address, before anything is started.
absl::Status Validate(const HttpServerOptions& options);

// Whether a request with this Host header may be answered by a server that
// listens on the loopback address `listen_host`.
bool IsLoopbackHost(absl::string_view host, absl::string_view listen_host);

}  // namespace cohort
