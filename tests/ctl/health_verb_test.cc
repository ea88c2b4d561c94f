#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/build_info.h"
#include "common/ops/ops_routes.h"
#include "common/security/tls_files.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

class HealthVerbTest : public testing::Test {
 protected:
  CtlResult Health(const absl::Status& ready, const std::string& flags = "") {
    const auto server = HttpServer::Start(
        {.listen = "127.0.0.1:0",
         .routes = OpsRoutes({.ready = [&] { return ready; }})});
    EXPECT_TRUE(server.ok()) << server.status();
    address_ = (*server)->address();
    return ctl_.RunPlain(absl::StrCat("health --ops=", address_,
                                      flags.empty() ? "" : " ", flags));
  }

  CtlHarness ctl_;
  std::string address_;
};

TEST_F(HealthVerbTest, PlaintextToHttpsSaysWhatToGive) {
  TestAuthority authority;
  const auto server = OkValue(HttpServer::Start(
      {.listen = "127.0.0.1:0",
       .routes = OpsRoutes({.ready = [] { return absl::OkStatus(); }}),
       .tls = *ReadTlsFiles(authority.Issue("server/0"), absl::Now())}));
  const std::string health = absl::StrCat("health --ops=", server->address());
  EXPECT_THAT(ctl_.RunPlain(health),
              PrintsError(5, "speaks HTTPS\nGive --tls_ca"));
  EXPECT_EQ(ctl_.RunPlain(absl::StrCat(health, " --tls_ca=",
                                       authority.Issue("viewer").ca))
                .code,
            0);
}

TEST_F(HealthVerbTest, ReadyIsZero) {
  const CtlResult result = Health(absl::OkStatus());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "ready\n");
  EXPECT_EQ(Health(absl::OkStatus(), "--json").out,
            "{\"ready\":true,\"message\":\"ready\"}\n");
}

TEST_F(HealthVerbTest, NotReadyIsFailureWithTheReason) {
  const absl::Status restoring = absl::UnavailableError("restoring");
  EXPECT_THAT(
      Health(restoring),
      PrintsError(1, absl::StrCat(address_, " is not ready: restoring\n")));
  EXPECT_EQ(Health(restoring, "--json").out,
            "{\"ready\":false,\"message\":\"restoring\"}\n");
}

TEST_F(HealthVerbTest, LiveAsksForIncarnationAlone) {
  const CtlResult result =
      Health(absl::UnavailableError("restoring"), "--live");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "alive\n");
}

TEST_F(HealthVerbTest, NobodyThereIsUnreachable) {
  Health(absl::OkStatus());
  EXPECT_THAT(ctl_.RunPlain(absl::StrCat("health --ops=", address_)),
              PrintsError(5, "--ops_listen"));
}

TEST_F(HealthVerbTest, VersionNamesTheCommit) {
  const CtlResult result = ctl_.RunPlain("--version");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, VersionText("cohortctl") + "\n");
}

}  // namespace
}  // namespace cohort
