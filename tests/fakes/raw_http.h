#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cohort {

// A bare TCP connection to 127.0.0.1, for requests that no HTTP client would
// send.
class RawConnection {
 public:
  // `address` is host:port; only the port is used.
  explicit RawConnection(const std::string& address) {
    int port = 0;
    (void)absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit = {.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    connected_ =
        connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  RawConnection(RawConnection&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  RawConnection& operator=(RawConnection&&) = delete;
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }

  bool connected() const { return connected_; }
  // False once the other side has closed.
  bool Send(absl::string_view bytes) const {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // The first bytes that arrive within `milliseconds`, if any.
  std::string ReadSome(int milliseconds) const {
    pollfd wanted = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&wanted, 1, milliseconds) <= 0) return "";
    char buffer[4096];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }
  // Reads until the other side closes, or is silent for 20 s.
  std::string ReadAll() const {
    std::string all;
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
};

struct HttpAnswer {
  // 0 if there was no answer.
  int status = 0;
  std::string headers;
  std::string body;
};

inline HttpAnswer ParseAnswer(const std::string& text) {
  HttpAnswer answer;
  const size_t end = text.find("\r\n\r\n");
  if (!absl::StartsWith(text, "HTTP/1.") || end == std::string::npos) {
    return answer;
  }
  (void)absl::SimpleAtoi(text.substr(9, 3), &answer.status);
  answer.headers = text.substr(0, end);
  answer.body = text.substr(end + 4);
  return answer;
}

// `lines` are further header lines, each with its line end.
inline HttpAnswer HttpRequest(const std::string& address,
                              absl::string_view method, absl::string_view path,
                              absl::string_view host = "localhost",
                              absl::string_view lines = "") {
  const RawConnection connection(address);
  connection.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", host,
                               "\r\nConnection: close\r\n", lines, "\r\n"));
  return ParseAnswer(connection.ReadAll());
}

inline HttpAnswer HttpGet(const std::string& address, absl::string_view path) {
  return HttpRequest(address, "GET", path);
}

}  // namespace cohort
