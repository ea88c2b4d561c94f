#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cohort {

// The part of a peer's address that limits apply to: an IPv4 address, or the
// first 64 bits of an IPv6 address, which one host may have to itself. Empty
// for this machine's own (loopback), which is exempt.
std::string LimitedAddress(const sockaddr_storage& peer);

// Counts the open connections of each address, although gRPC closes them
// without a word: a descriptor whose socket has another inode, or none, was
// closed. Looked up only when an address has reached its limit.
// Thread safety: none.
class ConnectionsByAddress {
 public:
  // `each_max` is the limit of one address.
  explicit ConnectionsByAddress(int32_t each_max) : each_max_(each_max) {}

  // Adds the connection `fd` of `address`; false if the address has reached its
  // limit.
  bool Add(const std::string& address, int fd);

 private:
  struct Connection {
    int fd = -1;
    ino_t inode = 0;
  };

  // Forgets addresses whose connections are all closed.
  void Sweep();

  const int32_t each_max_;
  std::map<std::string, std::vector<Connection>> connections_;
  // Connections of all addresses since the last sweep.
  int32_t added_ = 0;
};

}  // namespace cohort
