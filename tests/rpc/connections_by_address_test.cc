#include "server/rpc/connections_by_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace cohort {
namespace {

sockaddr_storage Peer(int family, const char* text) {
  sockaddr_storage peer = {};
  peer.ss_family = static_cast<sa_family_t>(family);
  void* address =
      family == AF_INET
          ? static_cast<void*>(&reinterpret_cast<sockaddr_in&>(peer).sin_addr)
          : &reinterpret_cast<sockaddr_in6&>(peer).sin6_addr;
  EXPECT_EQ(inet_pton(family, text, address), 1) << text;
  return peer;
}

TEST(LimitedAddressTest, LoopbackIsExempt) {
  EXPECT_EQ(LimitedAddress(Peer(AF_INET, "127.0.0.1")), "");
  EXPECT_EQ(LimitedAddress(Peer(AF_INET, "127.9.9.9")), "");
  EXPECT_EQ(LimitedAddress(Peer(AF_INET6, "::1")), "");
  EXPECT_EQ(LimitedAddress(Peer(AF_INET6, "::ffff:127.0.0.1")), "");
  sockaddr_storage local = {};
  local.ss_family = AF_UNIX;
  EXPECT_EQ(LimitedAddress(local), "");
}

TEST(LimitedAddressTest, AHostsManyIpv6AddressesCountAsOne) {
  EXPECT_EQ(LimitedAddress(Peer(AF_INET, "10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(LimitedAddress(Peer(AF_INET6, "::ffff:10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(LimitedAddress(Peer(AF_INET6, "2001:db8::1:2:3:4")), "2001:db8::");
  EXPECT_EQ(LimitedAddress(Peer(AF_INET6, "2001:db8::5:6:7:8")), "2001:db8::");
}

TEST(ConnectionsByAddressTest, ClosedOnesMakeRoom) {
  ConnectionsByAddress connections(2);
  const auto open = [] { return socket(AF_INET, SOCK_STREAM, 0); };
  const int one = open();
  const int two = open();
  const int three = open();
  EXPECT_TRUE(connections.Add("10.0.0.7", one));
  EXPECT_TRUE(connections.Add("10.0.0.7", two));
  EXPECT_FALSE(connections.Add("10.0.0.7", three));
  EXPECT_TRUE(connections.Add("10.0.0.8", three));
  EXPECT_TRUE(connections.Add("", three));
  close(one);
  // The number may belong to another socket by now.
  const int again = open();
  EXPECT_EQ(again, one);
  EXPECT_TRUE(connections.Add("10.0.0.7", again));
  EXPECT_FALSE(connections.Add("10.0.0.7", three));
  for (const int fd : {two, three, again}) close(fd);
}

}  // namespace
}  // namespace cohort
