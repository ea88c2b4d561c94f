#include "common/wire/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

TEST(SecurityTest, ClientsAcceptServersOfTheirRunOnly) {
  const Identity own = *ParseIdentity("spiffe://a.org/cohort/demo/worker/0");
  EXPECT_TRUE(CheckServer({"spiffe://a.org/cohort/demo/server/0"}, own).ok());
  ExpectOk(CheckServer({"https://a.org", "spiffe://a.org/cohort/demo/server/3"},
                       own));
  for (const char* other :
       {"spiffe://a.org/cohort/other/server/0",
        "spiffe://b.org/cohort/demo/server/0",
        "spiffe://a.org/cohort/demo/operator",
        "spiffe://a.org/cohort/demo/worker/0", "https://a.org"}) {
    const absl::Status refused = CheckServer({other}, own);
    EXPECT_THAT(refused, IsError(kUnauthenticated, other));
    EXPECT_THAT(refused, IsError(kUnauthenticated,
                                 "want spiffe://a.org/cohort/demo/server/0"));
  }
  EXPECT_FALSE(CheckServer({}, own).ok());
}

TEST(SecurityTest, WithoutACertificateAnyRunsServerIsAccepted) {
  ExpectOk(CheckServer({"spiffe://a.org/cohort/demo/server/0"}, std::nullopt));
  EXPECT_FALSE(
      CheckServer({"spiffe://a.org/cohort/demo/worker/0"}, std::nullopt).ok());
}

TEST(SecurityTest, HandshakeFailuresAreExplained) {
  EXPECT_THAT(*HandshakeFailure("Ssl handshake failed: SSL_ERROR_SSL: "
                                "error:0A00010B:SSL routines::wrong version "
                                "number"),
              HasSubstr("does not speak TLS"));
  EXPECT_THAT(*HandshakeFailure("x: Custom verification check failed with "
                                "error: UNAUTHENTICATED: the server's "
                                "certificate is for a, want b"),
              testing::StartsWith("the server's certificate is for a"));
  EXPECT_EQ(HandshakeFailure("Connection refused"), std::nullopt);
}

}  // namespace
}  // namespace cohort
