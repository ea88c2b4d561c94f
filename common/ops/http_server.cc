#include "common/ops/http_server.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/listen_address.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/ops/http_daemon.h"
#include "common/ops/listen_socket.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr absl::Duration kFailureInterval = absl::Minutes(1);
constexpr int kMethodNotAllowed = 405;
constexpr int kMisdirectedRequest = 421;
constexpr int kNotFound = 404;
constexpr int kUnauthorized = 401;
constexpr int kForbidden = 403;

constexpr absl::string_view kRisk =
    "see this run's state, its workers' names and its losses";

// Routes requests to handlers. Each of its daemons has a copy of the listening
// socket, so that a new certificate can be served before the daemon with the
// old one stops.
class RoutedServer final : public HttpServer {
 public:
  RoutedServer(const HttpServerOptions& options, const ListenAddress& address,
               ListenSocket socket)
      : options_(options),
        host_(address.host),
        loopback_(address.loopback()),
        address_(address.ToString()),
        listen_fd_(socket.Release()) {}

  ~RoutedServer() override {
    retired_.reset();
    daemon_.reset();
    close(listen_fd_);
  }

  const std::string& address() const override { return address_; }
  bool encrypted() const override { return options_.tls.has_value(); }
  int64_t handshake_failures() const override {
    return handshake_failures_.load(std::memory_order_relaxed);
  }

  absl::Status SetTls(const TlsContent& tls) override ABSL_LOCKS_EXCLUDED(mu_) {
    return Serve(tls);
  }

  absl::Status Serve(const std::optional<TlsContent>& tls)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const int fd = fcntl(listen_fd_, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      return absl::UnavailableError(
          absl::StrCat(options_.flag, ": ", std::strerror(errno)));
    }
    absl::StatusOr<std::unique_ptr<HttpDaemon>> daemon = HttpDaemon::Start(
        fd, tls, [this](const HttpRequest& request) { return Answer(request); },
        [this](const std::string& client) { OnHandshakeFailure(client); });
    if (!daemon.ok()) {
      return absl::UnavailableError(absl::StrCat(
          options_.flag, ": ", address_, ": ", daemon.status().message()));
    }
    MutexLock lock(mu_);
    if (daemon_ != nullptr) daemon_->StopAccepting();
    retired_ = std::exchange(daemon_, *std::move(daemon));
    return absl::OkStatus();
  }

 private:
  // Logs one line a minute, since port scans come in floods.
  void OnHandshakeFailure(const std::string& client)
      ABSL_LOCKS_EXCLUDED(failures_mu_) {
    handshake_failures_.fetch_add(1, std::memory_order_relaxed);
    const Instant now = clock_.Now();
    int64_t count = 0;
    {
      MutexLock lock(failures_mu_);
      ++failures_unlogged_;
      if (failure_logged_at_.has_value() &&
          now - *failure_logged_at_ < kFailureInterval) {
        return;
      }
      failure_logged_at_ = now;
      count = std::exchange(failures_unlogged_, 0);
    }
    Log(LogLevel::kWarning,
        absl::StrCat(options_.flag, ": ", client,
                     " ended its connection before the TLS handshake was "
                     "complete: it speaks plain HTTP, or does not trust this "
                     "port's certificate",
                     count == 1 ? ""
                                : absl::StrCat(" (", count,
                                               " such since the last line)")));
  }

  HttpResponse Answer(const HttpRequest& request) const {
    if (request.method != "GET" && request.method != "HEAD") {
      return {.status = kMethodNotAllowed, .body = "want GET or HEAD\n"};
    }
    if (loopback_ && !request.host.empty() &&
        !IsLoopbackHost(request.host, host_)) {
      return {.status = kMisdirectedRequest,
              .body = absl::StrCat("this server listens on this machine only; "
                                   "open ",
                                   encrypted() ? "https" : "http", "://",
                                   address_, "/\n")};
    }
    const std::string path(request.path.data(), request.path.size());
    const absl::Status admitted = Admit(path, request.presented);
    if (!admitted.ok()) {
      const bool ask =
          options_.takes_tokens && absl::IsUnauthenticated(admitted);
      return {.status = ask ? kUnauthorized : kForbidden,
              .body = absl::StrCat(admitted.message(), "\n")};
    }
    const auto route = options_.routes.find(path);
    if (route == options_.routes.end()) {
      return {.status = kNotFound, .body = NotFoundText()};
    }
    return route->second();
  }

  absl::Status Admit(const std::string& path,
                     const Presented& presented) const {
    if (!encrypted() || options_.admit == nullptr ||
        options_.open_paths.contains(path)) {
      return absl::OkStatus();
    }
    return options_.admit(path, presented);
  }

  std::string NotFoundText() const {
    std::string text = "not found; available pages:";
    for (const auto& [path, handler] : options_.routes) {
      absl::StrAppend(&text, " ", path);
    }
    return text + "\n";
  }

  // Fixed after construction.
  const HttpServerOptions options_;
  const std::string host_;
  const bool loopback_;
  const std::string address_;
  const int listen_fd_;

  const SteadyClock clock_{};

  // A counter only, so relaxed order is enough.
  std::atomic<int64_t> handshake_failures_ = 0;
  Mutex failures_mu_;
  std::optional<Instant> failure_logged_at_ ABSL_GUARDED_BY(failures_mu_);
  int64_t failures_unlogged_ ABSL_GUARDED_BY(failures_mu_) = 0;

  // Their threads use everything above.
  Mutex mu_;
  std::unique_ptr<HttpDaemon> daemon_ ABSL_GUARDED_BY(mu_);
  // The one before, whose connections may still be open.
  std::unique_ptr<HttpDaemon> retired_ ABSL_GUARDED_BY(mu_);
};

// Without port; an IPv6 address keeps its brackets.
absl::string_view HostName(absl::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  // A port is digits: otherwise "127.0.0.1:x.example" would be this machine.
  const bool has_port =
      colon != absl::string_view::npos &&
      (bracket == absl::string_view::npos || colon > bracket) &&
      host.find_first_not_of("0123456789", colon + 1) ==
          absl::string_view::npos;
  return has_port ? host.substr(0, colon) : host;
}

// Names may look similar ("127.evil.example"), so only digits and dots are
// accepted.
bool IsLoopbackNumber(absl::string_view name) {
  return absl::StartsWith(name, "127.") &&
         name.find_first_not_of("0123456789.") == absl::string_view::npos;
}

}  // namespace

bool IsLoopbackHost(absl::string_view host, absl::string_view listen_host) {
  const absl::string_view name = HostName(host);
  return IsLoopbackNumber(name) || name == "[::1]" ||
         absl::EqualsIgnoreCase(name, "localhost") ||
         absl::EqualsIgnoreCase(name, listen_host);
}

absl::Status Validate(const HttpServerOptions& options) {
  COHORT_ASSIGN_OR_RETURN(const ListenAddress address,
                          ParseHostPort(options.flag, options.listen));
  return CheckExposure(options.flag, address,
                       options.insecure || options.tls.has_value(), kRisk);
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    const HttpServerOptions& options) {
  COHORT_RETURN_IF_ERROR(Validate(options));
  COHORT_ASSIGN_OR_RETURN(ListenAddress address,
                          ParseHostPort(options.flag, options.listen));
  absl::StatusOr<ListenSocket> socket =
      ListenSocket::Open(options.flag, address);
  if (!socket.ok()) return socket.status();
  auto server =
      std::make_unique<RoutedServer>(options, address, *std::move(socket));
  COHORT_RETURN_IF_ERROR(server->Serve(options.tls));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace cohort
