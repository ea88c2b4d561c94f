#include "common/security/authenticator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/escaping.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Presented With(const std::string& uri) {
  return {.identity = *ParseIdentity(uri)};
}

class AuthenticatorTest : public testing::Test {
 protected:
  AuthenticatorTest() {
    std::ofstream(dir_.File("tokens")) << "ana " << TokenHash("secret") << "\n";
    tokens_ = *Tokens::Load(dir_.File("tokens"));
  }

  const TempDir dir_;
  const Identity own_ = *ParseIdentity("spiffe://a.org/cohort/demo/server/0");
  std::unique_ptr<Tokens> tokens_;
};

TEST_F(AuthenticatorTest, CertificatesOfTheRunAreKnown) {
  const Authenticator doors(own_, nullptr);
  const auto worker =
      doors.Identify(With("spiffe://a.org/cohort/demo/worker/3"));
  ASSERT_TRUE(worker.caller.has_value());
  EXPECT_EQ(worker.caller->role, PeerRole::kWorker);
  EXPECT_EQ(worker.caller->rank, 3);
  const auto any =
      doors.Identify(With("spiffe://a.org/cohort/demo/worker/any"));
  EXPECT_EQ(any.caller->rank, std::nullopt);
  // A shard's number is no rank.
  const auto shard =
      doors.Identify(With("spiffe://a.org/cohort/demo/server/1"));
  EXPECT_EQ(shard.caller->rank, std::nullopt);
}

TEST_F(AuthenticatorTest, OtherRunsAndDomainsAreRefused) {
  const Authenticator doors(own_, nullptr);
  for (const std::string uri : {"spiffe://a.org/cohort/other/operator",
                                "spiffe://b.org/cohort/demo/operator"}) {
    const auto result = doors.Identify(With(uri));
    EXPECT_FALSE(result.caller.has_value());
    EXPECT_EQ(result.refusal, Refusal::kOtherRun);
    EXPECT_THAT(result.text, HasSubstr(uri));
  }
}

TEST_F(AuthenticatorTest, TokensAreViewers) {
  const Authenticator doors(own_, tokens_.get());
  for (const std::string& header :
       {std::string("Bearer secret"), std::string("bearer secret"),
        "Basic " + absl::Base64Escape("anybody:secret")}) {
    const auto result = doors.Identify({.authorization = header});
    ASSERT_TRUE(result.caller.has_value()) << header;
    EXPECT_EQ(result.caller->role, PeerRole::kViewer);
    EXPECT_EQ(result.caller->name, "token ana");
  }
  for (const std::string header : {"Bearer guess", "Bearer ", "Bearer",
                                   "Basic secret", "secret", "Basic !!!"}) {
    const auto result = doors.Identify({.authorization = header});
    EXPECT_FALSE(result.caller.has_value()) << header;
    EXPECT_EQ(result.refusal, Refusal::kUnknownToken);
    EXPECT_THAT(result.text + result.presented, Not(HasSubstr("guess")));
  }
}

TEST_F(AuthenticatorTest, WithoutAnythingThereIsNoIdentity) {
  const Authenticator doors(own_, nullptr);
  EXPECT_EQ(doors.Identify({}).refusal, Refusal::kNoIdentity);
  // Tokens mean nothing where none are taken.
  EXPECT_EQ(doors.Identify({.authorization = "Bearer secret"}).refusal,
            Refusal::kNoIdentity);
}

TEST_F(AuthenticatorTest, PagesAreForViewersAndOperators) {
  const Authenticator doors(own_, nullptr);
  const auto page = [&](const std::string& role) {
    return doors.CheckPageReader(With("spiffe://a.org/cohort/demo/" + role))
        .code();
  };
  EXPECT_EQ(page("viewer"), absl::StatusCode::kOk);
  EXPECT_EQ(page("operator"), absl::StatusCode::kOk);
  EXPECT_EQ(page("worker/0"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(page("server/0"), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::IsUnauthenticated(doors.CheckPageReader({})));
}

}  // namespace
}  // namespace cohort
