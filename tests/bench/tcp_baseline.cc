#include "tests/bench/tcp_baseline.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort::bench {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }

  bool Send(const char* data, int64_t bytes) const {
    while (bytes > 0) {
      const ssize_t sent =
          send(fd_, data, static_cast<size_t>(bytes), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data += sent;
      bytes -= sent;
    }
    return true;
  }

  bool Receive(char* data, int64_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = recv(fd_, data, static_cast<size_t>(bytes), 0);
      if (got <= 0) return false;
      data += got;
      bytes -= got;
    }
    return true;
  }

 private:
  int fd_;
};

absl::Status ErrnoStatus(const char* what) {
  return absl::UnavailableError(
      absl::StrCat(what, " on loopback: ", std::strerror(errno)));
}

struct Pair {
  Socket server;
  Socket peer;
};

absl::StatusOr<Pair> Connect() {
  const Socket listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.fd(), generic, length) != 0 ||
      listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), generic, &length) != 0) {
    return ErrnoStatus("listen");
  }
  Socket peer(socket(AF_INET, SOCK_STREAM, 0));
  if (connect(peer.fd(), generic, length) != 0) return ErrnoStatus("connect");
  Socket server(accept(listener.fd(), nullptr, nullptr));
  if (server.fd() < 0) return ErrnoStatus("accept");
  const int on = 1;
  for (const Socket* s : {&peer, &server}) {
    setsockopt(s->fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return Pair{.server = std::move(server), .peer = std::move(peer)};
}

absl::StatusOr<std::vector<Pair>> ConnectAll(int32_t count) {
  std::vector<Pair> pairs;
  for (int32_t i = 0; i < count; ++i) {
    COHORT_ASSIGN_OR_RETURN(Pair pair, Connect());
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

}  // namespace

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  const auto at = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(at, values.size() - 1)];
}

std::vector<double> CopySeconds(int64_t bytes, int32_t rounds) {
  std::vector<char> from(static_cast<size_t>(bytes), 1);
  std::vector<char> to(static_cast<size_t>(bytes), 2);
  std::vector<double> seconds;
  for (int32_t i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), from.size());
    // The next copy reads what this one wrote, so that no copy can be left out.
    std::swap(from, to);
    seconds.push_back(SecondsSince(start));
  }
  return seconds;
}

absl::StatusOr<std::vector<double>> TcpExchangeSeconds(int32_t workers,
                                                       int64_t bytes,
                                                       int32_t rounds) {
  COHORT_ASSIGN_OR_RETURN(std::vector<Pair> pairs, ConnectAll(workers));
  std::vector<double> seconds;
  auto start = std::chrono::steady_clock::now();
  std::barrier round(std::ptrdiff_t{2} * workers, [&]() noexcept {
    seconds.push_back(SecondsSince(start));
    start = std::chrono::steady_clock::now();
  });
  {
    std::vector<std::jthread> ends;
    for (const Pair& pair : pairs) {
      ends.emplace_back([&pair, &round, bytes, rounds] {
        std::vector<char> memory(static_cast<size_t>(bytes));
        for (int32_t i = 0; i <= rounds; ++i) {
          pair.server.Receive(memory.data(), bytes);
          pair.server.Send(memory.data(), bytes);
          round.arrive_and_wait();
        }
      });
      ends.emplace_back([&pair, &round, bytes, rounds] {
        std::vector<char> memory(static_cast<size_t>(bytes));
        for (int32_t i = 0; i <= rounds; ++i) {
          pair.peer.Send(memory.data(), bytes);
          pair.peer.Receive(memory.data(), bytes);
          round.arrive_and_wait();
        }
      });
    }
  }
  seconds.erase(seconds.begin());  // The first round touches fresh memory.
  return seconds;
}

absl::StatusOr<std::vector<double>> TcpRendezvousSeconds(int32_t workers,
                                                         int64_t bytes,
                                                         int32_t rounds) {
  COHORT_ASSIGN_OR_RETURN(std::vector<Pair> pairs, ConnectAll(workers));
  std::vector<double> seconds;
  std::jthread server([&pairs, bytes, rounds] {
    std::vector<char> memory(static_cast<size_t>(bytes));
    for (int32_t i = 0; i < rounds; ++i) {
      for (const Pair& pair : pairs) {
        pair.server.Receive(memory.data(), bytes);
      }
      for (const Pair& pair : pairs) pair.server.Send(memory.data(), bytes);
    }
  });
  const auto peer = [&pairs, bytes, rounds](size_t index,
                                            std::vector<double>* times) {
    std::vector<char> memory(static_cast<size_t>(bytes));
    for (int32_t i = 0; i < rounds; ++i) {
      const auto start = std::chrono::steady_clock::now();
      pairs[index].peer.Send(memory.data(), bytes);
      pairs[index].peer.Receive(memory.data(), bytes);
      if (times != nullptr) times->push_back(SecondsSince(start));
    }
  };
  std::vector<std::jthread> others;
  for (size_t i = 1; i < pairs.size(); ++i) {
    others.emplace_back([&peer, i] { peer(i, nullptr); });
  }
  peer(0, &seconds);
  return seconds;
}

}  // namespace cohort::bench
