#include "common/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fakes/statuses.h"

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
  for (const char* bad :
       {"", "7070", ":7070", "host:", "host:x", "host:65536", "host:-1",
        "::1:7070", "[::1:7070", "[host]:7070", "host[1-2:7070", "a,b:7070",
        "a b:7070", "http://host:7070"}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(ParseListenAddress("--listen", bad).status()))
        << bad;
  }
}

TEST(ListenAddressTest, ReadsUnixSockets) {
  const auto path =
      OkValue(ParseListenAddress("--listen", "unix:/run/cohort/a b"));
  EXPECT_EQ(path.socket, "/run/cohort/a b");
  EXPECT_TRUE(path.is_unix());
  EXPECT_TRUE(path.loopback());
  EXPECT_EQ(path.ToString(), "unix:/run/cohort/a b");
  EXPECT_EQ(ParseListenAddress("--listen", "unix:///run/cohort")->ToString(),
            "unix:/run/cohort");
  const auto abstract =
      OkValue(ParseListenAddress("--listen", "unix-abstract:cohort"));
  EXPECT_EQ(abstract.socket, "@cohort");
  EXPECT_EQ(abstract.ToString(), "unix-abstract:cohort");
  EXPECT_TRUE(CheckExposure("--listen", path, false, "read").ok());
}

TEST(ListenAddressTest, RefusesSocketsThatProcessesWouldNotFind) {
  for (const char* bad :
       {"unix:", "unix:cohort", "unix:7070", "unix://host/cohort", "unix:/",
        "unix:/run/", "unix:///", "unix-abstract:", "unix:/run\n/x"}) {
    EXPECT_TRUE(IsUnixAddress(bad)) << bad;
    EXPECT_THAT(
        ParseListenAddress("--listen", bad),
        IsError(kInvalidArgument, absl::StrCat("--listen: got '", bad, "'")));
  }
  const std::string longest = "/" + std::string(106, 'a');
  EXPECT_TRUE(CheckServerAddress("--server", "unix:" + longest).ok());
  EXPECT_THAT(
      CheckServerAddress("--server", "unix:" + longest + "a"),
      IsError(kInvalidArgument, "--server: got a socket name of 108 bytes"));
}

TEST(ListenAddressTest, HttpIsServedOnPortsOnly) {
  EXPECT_TRUE(ParseHostPort("--ops_listen", "127.0.0.1:0").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      ParseHostPort("--ops_listen", "unix:/run/cohort").status()));
}

TEST(ListenAddressTest, ServersAreConnectedToByPortOrScheme) {
  for (const char* good :
       {"127.0.0.1:7070", "server:7070", "[::1]:7070", "unix:/run/cohort",
        "unix-abstract:cohort", "dns:///server:7070"}) {
    EXPECT_TRUE(CheckServerAddress("--server", good).ok()) << good;
  }
  EXPECT_THAT(CheckServerAddress("--server", "server"),
              IsError(kInvalidArgument, "--server: got 'server'"));
}

TEST(ListenAddressTest, AllAddressesAreNoPlaceToGoTo) {
  EXPECT_EQ(UrlHere("0.0.0.0:7071"), "http://localhost:7071/");
  EXPECT_EQ(UrlHere("[::]:7071"), "http://localhost:7071/");
  EXPECT_EQ(UrlHere("127.0.0.1:7071"), "http://127.0.0.1:7071/");
  EXPECT_EQ(UrlHere("[::]:7071", true), "https://localhost:7071/");
}

}  // namespace
}  // namespace cohort
