#include "common/ops/http_server.h"

#include <microhttpd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/ops/listen_socket.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Connections that are kept. Further ones are accepted all the same, and the
// connection that has been idle longest is closed: a supervisor's probe must be
// answered however many connections others hold.
constexpr size_t kConnectionsKept = 256;
// Includes room for connections that are ending but not closed yet.
constexpr unsigned int kConnectionsMax = kConnectionsKept + 64;
constexpr unsigned int kIdleSecondsMax = 10;
// Request and response headers of one connection.
constexpr size_t kHeaderBytesMax = size_t{16} << 10;

constexpr absl::string_view kRisk =
    "see this run's state, its workers' names and its losses";

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

struct StopDaemon {
  void operator()(MHD_Daemon* daemon) const { MHD_stop_daemon(daemon); }
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
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response.get(), MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  return MHD_queue_response(connection, status, response.get());
}

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
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info == nullptr ? -1 : info->connect_fd;
  }

  // The longest idle first. Short enough for a linear search.
  std::list<MHD_Connection*> order_;
};

class MicroHttpServer final : public HttpServer {
 public:
  MicroHttpServer(const HttpServerOptions& options,
                  const ListenAddress& address)
      : routes_(options.routes),
        host_(address.host),
        loopback_(address.loopback()),
        address_(address.ToString()) {}

  absl::Status Start(absl::string_view flag, ListenSocket socket) {
    const int fd = socket.Release();
    daemon_.reset(MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, &OnRequest, this,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        kConnectionsMax, MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this,
        MHD_OPTION_CONNECTION_TIMEOUT, kIdleSecondsMax,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeaderBytesMax, MHD_OPTION_END));
    if (daemon_ != nullptr) return absl::OkStatus();
    // The library takes ownership of the socket only if it starts.
    const int error = errno;
    close(fd);
    return absl::UnavailableError(
        absl::StrCat(flag, ": the HTTP server on ", address_,
                     " could not be started: ", std::strerror(error)));
  }

  const std::string& address() const override { return address_; }

 private:
  static void OnConnection(void* self, MHD_Connection* connection,
                           void** /*socket_context*/,
                           MHD_ConnectionNotificationCode code) {
    auto* server = static_cast<MicroHttpServer*>(self);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      server->connections_.Opened(connection);
    } else {
      server->connections_.Closed(connection);
    }
  }

  static MHD_Result OnRequest(void* self, MHD_Connection* connection,
                              const char* url, const char* method,
                              const char* /*version*/,
                              const char* /*upload_data*/,
                              size_t* /*upload_data_size*/,
                              void** /*request*/) {
    // The answer is sent before any request body is read; the connection then
    // ends.
    auto* server = static_cast<MicroHttpServer*>(self);
    server->connections_.Active(connection);
    const char* host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                                   MHD_HTTP_HEADER_HOST);
    return Send(connection,
                server->Answer(method, url, host == nullptr ? "" : host));
  }

  HttpResponse Answer(absl::string_view method, const char* path,
                      absl::string_view host) const {
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
      return {.status = MHD_HTTP_METHOD_NOT_ALLOWED,
              .body = "want GET or HEAD\n"};
    }
    if (loopback_ && !host.empty() && !IsLoopbackHost(host, host_)) {
      return {.status = MHD_HTTP_MISDIRECTED_REQUEST,
              .body = absl::StrCat("this server listens on this machine only; "
                                   "open http://",
                                   address_, "/\n")};
    }
    const auto route = routes_.find(path);
    if (route == routes_.end()) {
      return {.status = MHD_HTTP_NOT_FOUND, .body = NotFoundText()};
    }
    return route->second();
  }

  std::string NotFoundText() const {
    std::string text = "not found; available pages:";
    for (const auto& [path, handler] : routes_) {
      absl::StrAppend(&text, " ", path);
    }
    return text + "\n";
  }

  // Fixed after construction.
  const std::map<std::string, HttpHandler> routes_;
  const std::string host_;
  const bool loopback_;
  const std::string address_;

  IdleConnections connections_;

  // Last: its thread uses everything above.
  std::unique_ptr<MHD_Daemon, StopDaemon> daemon_;
};

// Without port; an IPv6 address keeps its brackets.
absl::string_view HostName(absl::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  const bool has_port = colon != absl::string_view::npos &&
                        (bracket == absl::string_view::npos || colon > bracket);
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
                          ParseListenAddress(options.flag, options.listen));
  return CheckExposure(options.flag, address, options.insecure, kRisk);
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    const HttpServerOptions& options) {
  COHORT_RETURN_IF_ERROR(Validate(options));
  COHORT_ASSIGN_OR_RETURN(ListenAddress address,
                          ParseListenAddress(options.flag, options.listen));
  absl::StatusOr<ListenSocket> socket =
      ListenSocket::Open(options.flag, address);
  if (!socket.ok()) return socket.status();
  auto server = std::make_unique<MicroHttpServer>(options, address);
  COHORT_RETURN_IF_ERROR(server->Start(options.flag, *std::move(socket)));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace cohort
