#include "server/rpc/connections_by_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "absl/strings/match.h"

namespace cohort {
namespace {

// Connections after which closed ones of all addresses are forgotten.
constexpr int32_t kSweepEvery = 1024;

// 0 if `fd` is no open descriptor.
ino_t InodeOf(int fd) {
  struct stat found = {};
  return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

std::string TextOf(const in_addr& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return absl::StartsWith(text.data(), "127.") ? "" : text.data();
}

}  // namespace

std::string LimitedAddress(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    return TextOf(reinterpret_cast<const sockaddr_in&>(peer).sin_addr);
  }
  if (peer.ss_family != AF_INET6) return "";
  in6_addr address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_LOOPBACK(&address)) return "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    in_addr mapped{};
    std::memcpy(&mapped, &address.s6_addr[12], sizeof(mapped));
    return TextOf(mapped);
  }
  std::memset(&address.s6_addr[8], 0, 8);
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, &address, text.data(), text.size());
  return text.data();
}

bool ConnectionsByAddress::Add(const std::string& address, int fd) {
  if (address.empty()) return true;
  if (++added_ >= kSweepEvery) Sweep();
  std::vector<Connection>& own = connections_[address];
  if (own.size() >= static_cast<size_t>(each_max_)) {
    std::erase_if(own, [](const Connection& connection) {
      return InodeOf(connection.fd) != connection.inode;
    });
  }
  if (own.size() >= static_cast<size_t>(each_max_)) return false;
  own.push_back({.fd = fd, .inode = InodeOf(fd)});
  return true;
}

void ConnectionsByAddress::Sweep() {
  added_ = 0;
  for (auto& [address, own] : connections_) {
    std::erase_if(own, [](const Connection& connection) {
      return InodeOf(connection.fd) != connection.inode;
    });
  }
  std::erase_if(connections_,
                [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace cohort
