#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/listen_address.h"
#include "common/mutex.h"
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
  // Handlers by path, such as "/metrics", or by path and query, such as
  // "/status.json?parts=all". Another query changes nothing.
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
//
// Thread safety: safe.
class HttpServer {
 public:
  // Errors:
  //   InvalidArgument  `listen` is not an address, or other machines can reach
  //                    it and `insecure` is not set.
  //   Unavailable      the address cannot be listened on; the message says why,
  //                    and what to do.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HttpServerOptions& options);
  // Stops listening, ends all connections and joins the thread.
  ~HttpServer();

  // The listening address, with the actual port.
  const std::string& address() const { return address_; }
  bool encrypted() const { return options_.tls.has_value(); }
  // Connections that ended before their TLS handshake was complete.
  int64_t handshake_failures() const {
    return handshake_failures_.load(std::memory_order_relaxed);
  }
  // Serves new connections with this certificate from now on; open ones stay.
  // Only for a server that was started with one.
  // Errors: Unavailable: the certificate cannot be used; the one before stays.
  absl::Status SetTls(const TlsContent& tls) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Serves one copy of the listening socket, with one certificate or none.
  class Daemon;
  struct Request;

  HttpServer(const HttpServerOptions& options, const ListenAddress& address,
             FileDescriptor listen_fd);
  absl::Status Serve(const std::optional<TlsContent>& tls)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnHandshakeFailure(const std::string& client)
      ABSL_LOCKS_EXCLUDED(failures_mu_);
  HttpResponse Answer(const Request& request) const;
  absl::Status Admit(const std::string& path, const Presented& presented) const;
  std::string NotFoundText() const;

  // Fixed after construction.
  const HttpServerOptions options_;
  const std::string host_;
  const bool loopback_;
  const std::string address_;
  const FileDescriptor listen_fd_;

  const SteadyClock clock_{};

  // A counter only, so relaxed order is enough.
  std::atomic<int64_t> handshake_failures_ = 0;
  Mutex failures_mu_;
  std::optional<Instant> failure_logged_at_ ABSL_GUARDED_BY(failures_mu_);
  int64_t failures_unlogged_ ABSL_GUARDED_BY(failures_mu_) = 0;

  // Their threads use everything above. A new certificate is served before the
  // daemon with the old one stops.
  Mutex mu_;
  std::unique_ptr<Daemon> daemon_ ABSL_GUARDED_BY(mu_);
  // The one before, whose connections may still be open.
  std::unique_ptr<Daemon> retired_ ABSL_GUARDED_BY(mu_);
};

// Checks only the address, before anything is started.
absl::Status Validate(const HttpServerOptions& options);

// Whether a request with this Host header may be answered by a server that
// listens on the loopback address `listen_host`.
bool IsLoopbackHost(absl::string_view host, absl::string_view listen_host);

}  // namespace cohort
