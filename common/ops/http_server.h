#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  // Sent instead of `body` if not empty, without a copy: must outlive the
  // server.
  absl::string_view fixed_body;
};

// Called on the server's one thread: whatever takes long holds up all other
// requests, and nothing else.
using HttpHandler = std::function<HttpResponse()>;

struct HttpServerOptions {
  // For errors: the flag that `listen` comes from.
  std::string flag = "--ops_listen";
  // host:port; port 0 takes a free one.
  std::string listen;
  // Allows an address that other machines can reach.
  bool insecure = false;
  // By path, such as "/metrics".
  std::map<std::string, HttpHandler> routes;
};

// A small HTTP/1.1 server for people who look at one process: GET and HEAD of
// fixed paths.
//
// One thread serves all connections and waits for none of them, so that slow
// clients cost memory only; there are limits on connections, header bytes and
// idle time. A new connection is always accepted: where there are too many, the
// one that has been idle for longest ends. On loopback only requests whose Host
// names loopback are answered: a web page that a browser of this machine has
// open cannot read what is here by pointing its own name at 127.0.0.1. Every
// answer forbids being framed, stored, or guessed to be another type, and
// scripts other than the server's own files.
class HttpServer {
 public:
  // Stops listening, ends all connections and joins the thread.
  virtual ~HttpServer() = default;
  // Where it listens, with the port that was taken.
  virtual const std::string& address() const = 0;
};

// Errors:
//   InvalidArgument  the address is none, or can be reached from elsewhere and
//                    `insecure` is not set.
//   Unavailable      it cannot be listened on; says why, and what to do.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    const HttpServerOptions& options);

// The checks of the address alone, before anything is started.
absl::Status Validate(const HttpServerOptions& options);

// Whether a request with this Host header may be answered by a server that
// listens on the loopback address `listen_host`.
bool IsLoopbackHost(absl::string_view host, absl::string_view listen_host);

}  // namespace cohort
