#include "common/listen_address.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(ListenAddressTest, ReadsHostAndPort) {
  EXPECT_TRUE(ParseListenAddress("--listen", "127.0.0.1:7070")->loopback());
  EXPECT_TRUE(ParseListenAddress("--listen", "localhost:0")->loopback());
  EXPECT_TRUE(ParseListenAddress("--listen", "[::1]:7070")->loopback());
  EXPECT_FALSE(ParseListenAddress("--listen", "0.0.0.0:7070")->loopback());
  EXPECT_FALSE(ParseListenAddress("--listen", "[::]:7070")->loopback());
  EXPECT_EQ(ParseListenAddress("--listen", "[::1]:7070")->ToString(),
            "[::1]:7070");
  for (const char* bad : {"", "7070", ":7070", "host:", "host:x", "host:65536",
                          "host:-1", "::1:7070"}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(ParseListenAddress("--listen", bad).status()))
        << bad;
  }
}

TEST(ListenAddressTest, ServersAreConnectedToByPortOrScheme) {
  for (const char* good : {"127.0.0.1:7070", "server:7070", "[::1]:7070",
                           "unix:/run/cohort", "dns:///server:7070"}) {
    EXPECT_TRUE(CheckServerAddress("--server", good).ok()) << good;
  }
  EXPECT_EQ(CheckServerAddress("--server", "server").message(),
            "--server: got 'server', want host:port such as 127.0.0.1:7070, "
            "with a port of 0 to 65535");
}

TEST(ListenAddressTest, AllAddressesAreNoPlaceToGoTo) {
  EXPECT_EQ(UrlHere("0.0.0.0:7071"), "http://localhost:7071/");
  EXPECT_EQ(UrlHere("[::]:7071"), "http://localhost:7071/");
  EXPECT_EQ(UrlHere("127.0.0.1:7071"), "http://127.0.0.1:7071/");
  EXPECT_EQ(UrlHere("[::]:7071", true), "https://localhost:7071/");
}

}  // namespace
}  // namespace cohort
