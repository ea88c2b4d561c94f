#include "common/security/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(IdentityTest, EveryFormIsReadAndWritten) {
  const std::string base = "spiffe://example.org/cohort/demo/";
  for (const std::string form :
       {"server/0", "server/3", "worker/0", "worker/12", "worker/any", "viewer",
        "operator"}) {
    const absl::StatusOr<Identity> identity = ParseIdentity(base + form);
    ASSERT_TRUE(identity.ok()) << form << ": " << identity.status();
    EXPECT_EQ(identity->Uri(), base + form);
    EXPECT_EQ(identity->domain, "example.org");
    EXPECT_EQ(identity->run, "demo");
  }
  EXPECT_EQ(ParseIdentity(base + "worker/12")->number, 12);
  EXPECT_EQ(ParseIdentity(base + "worker/any")->number, std::nullopt);
  EXPECT_EQ(ParseIdentity(base + "operator")->role, PeerRole::kOperator);
}

TEST(IdentityTest, OtherTextsAreRefused) {
  for (const std::string bad : {"",
                                "https://example.org/cohort/demo/viewer",
                                "spiffe:///cohort/demo/viewer",
                                "spiffe://EXAMPLE/cohort/demo/viewer",
                                "spiffe://example.org/other/demo/viewer",
                                "spiffe://example.org/cohort/Demo/viewer",
                                "spiffe://example.org/cohort//viewer",
                                "spiffe://example.org/cohort/demo",
                                "spiffe://example.org/cohort/demo/",
                                "spiffe://example.org/cohort/demo/admin",
                                "spiffe://example.org/cohort/demo/viewer/0",
                                "spiffe://example.org/cohort/demo/operator/any",
                                "spiffe://example.org/cohort/demo/worker",
                                "spiffe://example.org/cohort/demo/worker/",
                                "spiffe://example.org/cohort/demo/worker/-1",
                                "spiffe://example.org/cohort/demo/worker/+1",
                                "spiffe://example.org/cohort/demo/worker/01",
                                "spiffe://example.org/cohort/demo/worker/4096",
                                "spiffe://example.org/cohort/demo/worker/1/2",
                                "spiffe://example.org/cohort/demo/server/any",
                                "spiffe://example.org/cohort/demo/viewer?x"}) {
    EXPECT_THAT(ParseIdentity(bad),
                IsError(kInvalidArgument, "want spiffe://DOMAIN/cohort/RUN/"));
  }
}

}  // namespace
}  // namespace cohort
