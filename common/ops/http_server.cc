#include "common/ops/http_server.h"

#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/ops/listen_socket.h"
#include "common/security/certificate.h"
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

// Connections that are kept. Further ones are accepted all the same, and the
// connection that has been idle longest is closed: a supervisor's probe must be
// answered however many connections others hold.
constexpr size_t kConnectionsKept = 256;
// Includes room for connections that are ending but not closed yet.
constexpr unsigned int kConnectionsMax = kConnectionsKept + 64;
constexpr unsigned int kIdleSecondsMax = 10;
// Request and response headers of one connection.
constexpr size_t kHeaderBytesMax = size_t{16} << 10;

// Scripts, styles and requests only from this server, and nothing inline.
constexpr const char* kSecurityHeaders[][2] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; "
     "img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
     "form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
};

struct DestroyResponse {
  void operator()(MHD_Response* response) const {
    MHD_destroy_response(response);
  }
};
using Response = std::unique_ptr<MHD_Response, DestroyResponse>;

void DeleteBody(void* body) { delete static_cast<std::string*>(body); }

// Null if there is no memory left.
Response WithBody(HttpResponse answer) {
  if (!answer.fixed_body.empty()) {
    return Response(MHD_create_response_from_buffer(
        answer.fixed_body.size(), const_cast<char*>(answer.fixed_body.data()),
        MHD_RESPMEM_PERSISTENT));
  }
  auto body = std::make_unique<std::string>(std::move(answer.body));
  Response response(MHD_create_response_from_buffer_with_free_callback_cls(
      body->size(), body->data(), &DeleteBody, body.get()));
  // Its callback deletes it from now on.
  if (response != nullptr) static_cast<void>(body.release());
  return response;
}

MHD_Result Send(MHD_Connection* connection, HttpResponse answer) {
  const auto status = static_cast<unsigned int>(answer.status);
  const std::string content_type = answer.content_type;
  const Response response = WithBody(std::move(answer));
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response.get(), MHD_HTTP_HEADER_CONTENT_TYPE,
                          content_type.c_str());
  for (const auto& [name, value] : kSecurityHeaders) {
    MHD_add_response_header(response.get(), name, value);
  }
  if (status == MHD_HTTP_UNAUTHORIZED) {
    // A browser asks for a name and a password; the password is the token.
    MHD_add_response_header(response.get(), MHD_HTTP_HEADER_WWW_AUTHENTICATE,
                            "Basic realm=\"cohort\", Bearer");
  }
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response.get(), MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  return MHD_queue_response(connection, status, response.get());
}

// The fault of a certificate, by GnuTLS's bits.
std::string ProblemText(unsigned int problems) {
  if ((problems & GNUTLS_CERT_EXPIRED) != 0) return "that has expired";
  if ((problems & GNUTLS_CERT_NOT_ACTIVATED) != 0) {
    return "that is not valid yet";
  }
  if ((problems & GNUTLS_CERT_SIGNER_NOT_FOUND) != 0) {
    return "of an authority that is not in this side's --tls_ca";
  }
  return "that is not valid";
}

// The content of the client's certificate, if it sent one.
Presented PresentedIn(MHD_Connection* connection) {
  Presented presented;
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == nullptr || info->tls_session == nullptr) return presented;
  auto* session = static_cast<gnutls_session_t>(info->tls_session);
  unsigned int problems = 0;
  unsigned int count = 0;
  const gnutls_datum_t* chain = gnutls_certificate_get_peers(session, &count);
  if (chain == nullptr || count == 0) return presented;
  if (gnutls_certificate_verify_peers2(session, &problems) != 0 ||
      problems != 0) {
    presented.certificate_problem = ProblemText(problems);
    return presented;
  }
  const absl::StatusOr<Certificate> certificate =
      ParseDerCertificate(absl::string_view(
          reinterpret_cast<const char*>(chain[0].data), chain[0].size));
  const absl::StatusOr<Identity> identity =
      certificate.ok() ? IdentityOf("client", *certificate)
                       : certificate.status();
  if (identity.ok()) {
    presented.identity = *identity;
  } else {
    presented.certificate_problem = "without an identity of Cohort";
  }
  return presented;
}

// "10.0.0.1:52110" or "[::1]:52110".
std::string AddressText(const sockaddr* address) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (address == nullptr) return "unknown";
  const bool six = address->sa_family == AF_INET6;
  const socklen_t size = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(address, size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return six ? absl::StrCat("[", host, "]:", port)
             : absl::StrCat(host, ":", port);
}

// Whether the handshake of a connection is complete; the library does not tell.
struct Handshake {
  bool complete = false;
  std::string client;
};

// Follows the handshake of a connection that has just begun. The session keeps
// a pointer to the result.
Handshake* Follow(MHD_Connection* connection) {
  const MHD_ConnectionInfo* session =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (session == nullptr || session->tls_session == nullptr) return nullptr;
  const MHD_ConnectionInfo* peer =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  auto handshake = std::make_unique<Handshake>();
  handshake->client =
      AddressText(peer == nullptr ? nullptr : peer->client_addr);
  auto* tls = static_cast<gnutls_session_t>(session->tls_session);
  gnutls_session_set_ptr(tls, handshake.get());
  gnutls_handshake_set_hook_function(
      tls, GNUTLS_HANDSHAKE_FINISHED, GNUTLS_HOOK_POST,
      [](gnutls_session_t of, unsigned int /*type*/, unsigned int /*when*/,
         unsigned int incoming, const gnutls_datum_t* /*message*/) {
        auto* shaken = static_cast<Handshake*>(gnutls_session_get_ptr(of));
        // The client's message is the last one.
        if (incoming != 0) shaken->complete = true;
        return 0;
      });
  return handshake.release();
}

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

struct HttpServer::Request {
  absl::string_view method;
  absl::string_view path;
  // "?name=value&other=value", in the order of the request; empty without one.
  std::string query;
  // Empty without such a header.
  absl::string_view host;
  // Empty over plain HTTP.
  Presented presented;
};

class HttpServer::Daemon {
 public:
  explicit Daemon(HttpServer& server) : server_(server) {}

  ~Daemon() {
    daemon_.reset();
    if (quiet_fd_ >= 0) close(quiet_fd_);
  }

  // Takes `listen_fd` over.
  // Errors: Unavailable with the reason.
  absl::Status Start(int listen_fd, const std::optional<TlsContent>& tls) {
    std::vector<MHD_OptionItem> options;
    // The library stops accepting only with a channel to its thread (ITC).
    unsigned int flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC;
    if (tls.has_value()) {
      flags |= MHD_USE_TLS;
      options = {TextOption(MHD_OPTION_HTTPS_MEM_KEY, tls->key),
                 TextOption(MHD_OPTION_HTTPS_MEM_CERT, tls->cert),
                 TextOption(MHD_OPTION_HTTPS_MEM_TRUST, tls->ca),
                 TextOption(MHD_OPTION_HTTPS_PRIORITIES, kPriorities)};
    }
    options.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_.reset(MHD_start_daemon(
        flags, 0, nullptr, nullptr, &OnRequest, this, MHD_OPTION_LISTEN_SOCKET,
        listen_fd, MHD_OPTION_CONNECTION_LIMIT, kConnectionsMax,
        MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this,
        MHD_OPTION_CONNECTION_TIMEOUT, kIdleSecondsMax,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeaderBytesMax, MHD_OPTION_ARRAY,
        options.data(), MHD_OPTION_END));
    if (daemon_ != nullptr) return absl::OkStatus();
    // The library takes ownership of the socket only if it starts.
    const int error = errno;
    close(listen_fd);
    return absl::UnavailableError(
        absl::StrCat("the HTTP server could not be started: ",
                     tls.has_value() ? "the certificate was refused, or " : "",
                     std::strerror(error)));
  }

  // Accepts no more connections; those that are open stay until they are idle.
  void StopAccepting() {
    if (quiet_fd_ < 0) quiet_fd_ = MHD_quiesce_daemon(daemon_.get());
  }

 private:
  struct StopDaemon {
    void operator()(MHD_Daemon* daemon) const { MHD_stop_daemon(daemon); }
  };
  // Closes the connections that have been idle longest. Used by the server's
  // thread only.
  class IdleConnections {
   public:
    void Opened(MHD_Connection* connection) {
      order_.push_back(connection);
      if (order_.size() <= kConnectionsKept) return;
      // The library closes it once it finds that the peer is gone.
      shutdown(FdOf(order_.front()), SHUT_RDWR);
      order_.pop_front();
    }
    void Active(MHD_Connection* connection) {
      const auto at = std::find(order_.begin(), order_.end(), connection);
      if (at != order_.end()) order_.splice(order_.end(), order_, at);
    }
    void Closed(MHD_Connection* connection) { order_.remove(connection); }

   private:
    static int FdOf(MHD_Connection* connection) {
      const MHD_ConnectionInfo* info = MHD_get_connection_info(
          connection, MHD_CONNECTION_INFO_CONNECTION_FD);
      return info == nullptr ? -1 : info->connect_fd;
    }

    // The longest idle first. Short enough for a linear search.
    std::list<MHD_Connection*> order_;
  };

  // Only TLS 1.2 and 1.3, as gRPC.
  static constexpr char kPriorities[] = "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1";

  static MHD_OptionItem TextOption(MHD_OPTION option, const std::string& text) {
    return {option, 0, const_cast<char*>(text.c_str())};
  }
  static MHD_OptionItem TextOption(MHD_OPTION option, const char* text) {
    return {option, 0, const_cast<char*>(text)};
  }

  static void OnConnection(void* self, MHD_Connection* connection,
                           void** socket_context,
                           MHD_ConnectionNotificationCode code) {
    auto* daemon = static_cast<Daemon*>(self);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      daemon->connections_.Opened(connection);
      *socket_context =
          daemon->server_.encrypted() ? Follow(connection) : nullptr;
      return;
    }
    daemon->connections_.Closed(connection);
    const std::unique_ptr<Handshake> handshake(
        static_cast<Handshake*>(std::exchange(*socket_context, nullptr)));
    if (handshake == nullptr || handshake->complete) return;
    daemon->server_.OnHandshakeFailure(handshake->client);
  }

  static MHD_Result OnRequest(void* self, MHD_Connection* connection,
                              const char* url, const char* method,
                              const char* /*version*/,
                              const char* /*upload_data*/,
                              size_t* /*upload_data_size*/,
                              void** /*request*/) {
    // The answer is sent before any request body is read; the connection then
    // ends.
    auto* daemon = static_cast<Daemon*>(self);
    daemon->connections_.Active(connection);
    Request request{.method = method,
                    .path = url,
                    .query = Query(connection),
                    .host = Header(connection, MHD_HTTP_HEADER_HOST)};
    if (daemon->server_.encrypted()) {
      request.presented = PresentedIn(connection);
      request.presented.authorization =
          Header(connection, MHD_HTTP_HEADER_AUTHORIZATION);
    }
    return Send(connection, daemon->server_.Answer(request));
  }

  static std::string Query(MHD_Connection* connection) {
    std::string query;
    MHD_get_connection_values(
        connection, MHD_GET_ARGUMENT_KIND,
        [](void* text, MHD_ValueKind, const char* name, const char* value) {
          auto& query = *static_cast<std::string*>(text);
          absl::StrAppend(&query, query.empty() ? "?" : "&", name, "=",
                          value == nullptr ? "" : value);
          return MHD_YES;
        },
        &query);
    return query;
  }

  // Empty if there is none.
  static const char* Header(MHD_Connection* connection, const char* name) {
    const char* value =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
    return value == nullptr ? "" : value;
  }

  HttpServer& server_;

  IdleConnections connections_;
  // The listening socket once no more connections are accepted.
  int quiet_fd_ = -1;

  // Last: its thread uses everything above.
  std::unique_ptr<MHD_Daemon, StopDaemon> daemon_;
};

HttpServer::HttpServer(const HttpServerOptions& options,
                       const ListenAddress& address, FileDescriptor listen_fd)
    : options_(options),
      host_(address.host),
      loopback_(address.loopback()),
      address_(address.ToString()),
      listen_fd_(std::move(listen_fd)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const HttpServerOptions& options) {
  COHORT_RETURN_IF_ERROR(Validate(options));
  COHORT_ASSIGN_OR_RETURN(ListenAddress address,
                          ParseHostPort(options.flag, options.listen));
  absl::StatusOr<ListenSocket> socket =
      ListenSocket::Open(options.flag, address);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<HttpServer> server(
      new HttpServer(options, address, socket->Release()));
  COHORT_RETURN_IF_ERROR(server->Serve(options.tls));
  return server;
}

HttpServer::~HttpServer() {
  retired_.reset();
  daemon_.reset();
}

absl::Status HttpServer::SetTls(const TlsContent& tls) { return Serve(tls); }

// Each daemon takes over a copy of the listening socket, so that the next one
// can accept before the one before has ended.
absl::Status HttpServer::Serve(const std::optional<TlsContent>& tls) {
  const int fd = fcntl(listen_fd_.get(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat(options_.flag, ": ", std::strerror(errno)));
  }
  auto daemon = std::make_unique<Daemon>(*this);
  const absl::Status started = daemon->Start(fd, tls);
  if (!started.ok()) {
    return absl::UnavailableError(
        absl::StrCat(options_.flag, ": ", address_, ": ", started.message()));
  }
  MutexLock lock(mu_);
  if (daemon_ != nullptr) daemon_->StopAccepting();
  // Ends the daemon before the last, and connections that have outlasted two
  // changes of the certificate.
  retired_ = std::exchange(daemon_, std::move(daemon));
  return absl::OkStatus();
}

// Logs one line a minute, since port scans come in floods.
void HttpServer::OnHandshakeFailure(const std::string& client) {
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

HttpResponse HttpServer::Answer(const Request& request) const {
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
    const bool ask = options_.takes_tokens && absl::IsUnauthenticated(admitted);
    return {.status = ask ? kUnauthorized : kForbidden,
            .body = absl::StrCat(admitted.message(), "\n")};
  }
  auto route = options_.routes.find(path + request.query);
  if (route == options_.routes.end()) route = options_.routes.find(path);
  // A "?" that was escaped is part of the path, which was admitted as such.
  if (route == options_.routes.end() || absl::StrContains(path, '?')) {
    return {.status = kNotFound, .body = NotFoundText()};
  }
  return route->second();
}

absl::Status HttpServer::Admit(const std::string& path,
                               const Presented& presented) const {
  if (!encrypted() || options_.admit == nullptr ||
      options_.open_paths.contains(path)) {
    return absl::OkStatus();
  }
  return options_.admit(path, presented);
}

std::string HttpServer::NotFoundText() const {
  std::string text = "not found; available pages:";
  for (const auto& [path, handler] : options_.routes) {
    absl::StrAppend(&text, " ", path);
  }
  return text + "\n";
}

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

}  // namespace cohort
