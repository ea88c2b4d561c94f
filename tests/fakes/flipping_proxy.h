#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace cohort {

// The bit of a gRPC message that a FlippingProxy flips.
struct BitFlip {
  // How the method names of the connection's calls begin, such as
  // "/cohort.v1.Moments/".
  std::string service;
  bool to_server = true;
  // Index, from 0, among the messages of a length in this range that go in this
  // direction on any connection of the service.
  int message = 0;
  size_t bytes_min = 1;
  size_t bytes_max = size_t{1} << 30;
  // Index of the byte, modulo the message's length.
  size_t byte = 0;
  int bit = 0;
};

// A network between a server and its clients on loopback that damages one bit
// of one message, where TCP's checksum cannot see it. It parses HTTP/2 frames,
// so that only the message is damaged.
class FlippingProxy {
 public:
  // `server` is host:port.
  FlippingProxy(const std::string& server, BitFlip flip)
      : server_port_(std::atoi(server.substr(server.rfind(':') + 1).c_str())),
        flip_(std::move(flip)),
        listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in here = Loopback(0);
    bind(listener_, reinterpret_cast<sockaddr*>(&here), sizeof here);
    listen(listener_, 64);
    socklen_t size = sizeof here;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&here), &size);
    address_ = absl::StrCat("127.0.0.1:", ntohs(here.sin_port));
    acceptor_ = std::jthread([this] { Accept(); });
  }

  ~FlippingProxy() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      MutexLock lock(mu_);
      for (const int fd : sockets_) shutdown(fd, SHUT_RDWR);
    }
    pumps_.clear();
    for (const int fd : sockets_) close(fd);
    close(listener_);
  }

  const std::string& address() const { return address_; }
  bool flipped() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return flipped_;
  }

 private:
  // Both directions of one connection.
  struct Connection {
    int client = -1;
    int server = -1;
    Mutex mu;
    std::string requests ABSL_GUARDED_BY(mu);
  };

  // Position of one stream of a connection within its messages.
  struct Place {
    std::string prefix;
    uint32_t length = 0;
    uint32_t done = 0;
    bool hit = false;
  };

  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void Accept() {
    for (;;) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      auto connection = std::make_shared<Connection>();
      connection->client = client;
      connection->server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_in there = Loopback(server_port_);
      // If the server is gone, the client's connection is closed.
      const bool reached =
          connect(connection->server, reinterpret_cast<const sockaddr*>(&there),
                  sizeof there) == 0;
      // Small messages must not wait for others.
      const int on = 1;
      for (const int fd : {client, connection->server}) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      }
      MutexLock lock(mu_);
      sockets_.push_back(client);
      sockets_.push_back(connection->server);
      if (!reached) {
        shutdown(client, SHUT_RDWR);
        continue;
      }
      pumps_.emplace_back([this, connection] { Pump(*connection, true); });
      pumps_.emplace_back([this, connection] { Pump(*connection, false); });
    }
  }

  void Pump(Connection& connection, bool to_server) {
    const int from = to_server ? connection.client : connection.server;
    const int to = to_server ? connection.server : connection.client;
    // Bytes of the client's preface that have not arrived yet.
    size_t preface = to_server ? 24 : 0;
    std::map<uint32_t, Place> places;
    std::string held;
    char buffer[1 << 16];
    for (;;) {
      const ssize_t got = recv(from, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      held.append(buffer, static_cast<size_t>(got));
      const size_t whole = preface + WholeFrames(held, preface);
      if (whole <= preface) continue;
      std::string out = held.substr(0, whole);
      held.erase(0, whole);
      for (size_t at = preface; at < out.size();) {
        const size_t size = FrameBytes(out, at);
        OnFrame(connection, to_server, out, at, size, places);
        at += size;
      }
      preface = 0;
      if (!SendAll(to, out)) break;
    }
    shutdown(to, SHUT_WR);
    shutdown(from, SHUT_RD);
  }

  static bool SendAll(int to, absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  static uint8_t ByteAt(const std::string& bytes, size_t at) {
    return static_cast<uint8_t>(bytes[at]);
  }

  static size_t FrameBytes(const std::string& bytes, size_t at) {
    return 9 + (size_t{ByteAt(bytes, at)} << 16 |
                size_t{ByteAt(bytes, at + 1)} << 8 |
                size_t{ByteAt(bytes, at + 2)});
  }

  // Bytes of the frames that are complete, from `begin` on.
  static size_t WholeFrames(const std::string& bytes, size_t begin) {
    size_t at = begin;
    while (at + 9 <= bytes.size() && at + FrameBytes(bytes, at) <= bytes.size())
      at += FrameBytes(bytes, at);
    return at < begin ? 0 : at - begin;
  }

  void OnFrame(Connection& connection, bool to_server, std::string& bytes,
               size_t at, size_t size, std::map<uint32_t, Place>& places) {
    constexpr uint8_t kData = 0;
    constexpr uint8_t kHeaders = 1;
    const uint8_t type = ByteAt(bytes, at + 3);
    if (type == kHeaders && to_server) {
      MutexLock lock(connection.mu);
      connection.requests.append(bytes, at, size);
    }
    if (type != kData || to_server != flip_.to_server) return;
    {
      MutexLock lock(connection.mu);
      if (connection.requests.find(flip_.service) == std::string::npos) return;
    }
    uint32_t stream = 0;
    for (size_t i = 5; i < 9; ++i) stream = stream << 8 | ByteAt(bytes, at + i);
    Place& place = places[stream];
    for (size_t i = at + 9; i < at + size; ++i) OnByte(place, bytes[i]);
  }

  void OnByte(Place& place, char& byte) ABSL_LOCKS_EXCLUDED(mu_) {
    if (place.prefix.size() < 5) {
      place.prefix.push_back(byte);
      if (place.prefix.size() < 5) return;
      place.length = 0;
      for (size_t i = 1; i < 5; ++i) {
        place.length = place.length << 8 | ByteAt(place.prefix, i);
      }
      place.done = 0;
      MutexLock lock(mu_);
      place.hit = place.length >= flip_.bytes_min &&
                  place.length <= flip_.bytes_max && seen_++ == flip_.message;
    } else {
      if (place.hit && place.done == flip_.byte % place.length) {
        byte = static_cast<char>(byte ^ (1 << flip_.bit));
        MutexLock lock(mu_);
        flipped_ = true;
      }
      ++place.done;
    }
    if (place.done == place.length) place.prefix.clear();
  }

  // Fixed after construction.
  const int server_port_;
  const BitFlip flip_;
  const int listener_;
  std::string address_;

  mutable Mutex mu_;
  int seen_ ABSL_GUARDED_BY(mu_) = 0;
  bool flipped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mu_);
  std::jthread acceptor_;
  // Written by the acceptor, and after its end by the destructor.
  std::vector<std::jthread> pumps_;
};

}  // namespace cohort
