// A client finds out why a gRPC server ends its connections.
#include "common/ops/closed_connection.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/wire/security.h"
#include "tests/fakes/small_grpc_server.h"
#include "tests/fakes/temp_dir.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class WhyClosedTest : public testing::Test {
 protected:
  std::shared_ptr<grpc::ServerCredentials> Credentials(
      bool require_certificate) {
    return (*Security::Load(authority_.Issue("server/0")))
        ->ForServer(require_certificate);
  }

  TestAuthority authority_;
};

TEST_F(WhyClosedTest, PlaintextToTls) {
  const SmallGrpcServer server(Credentials(true));
  const ClosedBecause cause = WhyClosed(server.address(), {}, kPatience);
  EXPECT_EQ(cause, ClosedBecause::kServerSpeaksTls);
  EXPECT_THAT(std::string(Text(cause)), HasSubstr("give --tls_ca"));
}

TEST_F(WhyClosedTest, LooksAtUnixSocketsToo) {
  const TempDir folder;
  const SmallGrpcServer server(Credentials(true), folder.File("socket"));
  EXPECT_EQ(WhyClosed(server.address(), {}, kPatience),
            ClosedBecause::kServerSpeaksTls);
}

TEST_F(WhyClosedTest, NoCertificate) {
  const SmallGrpcServer server(Credentials(true));
  const ClosedBecause cause = WhyClosed(
      server.address(), {.ca = authority_.Issue("viewer").ca}, kPatience);
  EXPECT_EQ(cause, ClosedBecause::kNoCertificate);
  EXPECT_THAT(std::string(Text(cause)), HasSubstr("give --tls_cert"));
}

TEST_F(WhyClosedTest, ACertificateThatTheServerDoesNotKnow) {
  const SmallGrpcServer server(Credentials(true));
  TestAuthority other;
  TlsFiles files = other.Issue("viewer");
  // This side trusts both authorities.
  const std::string both = other.File("both.crt");
  WriteText(both, ReadText(files.ca) + ReadText(authority_.Issue("viewer").ca));
  files.ca = both;
  EXPECT_EQ(WhyClosed(server.address(), files, kPatience),
            ClosedBecause::kOwnCertificate);
}

TEST_F(WhyClosedTest, NothingIsSaidOfServersThatServe) {
  const TlsFiles viewer = authority_.Issue("viewer");
  const SmallGrpcServer encrypted(Credentials(true));
  EXPECT_EQ(WhyClosed(encrypted.address(), viewer, kPatience),
            ClosedBecause::kUnknown);
  const SmallGrpcServer for_tokens(Credentials(false));
  EXPECT_EQ(WhyClosed(for_tokens.address(), {.ca = viewer.ca}, kPatience),
            ClosedBecause::kUnknown);
  SmallGrpcServer plain(grpc::InsecureServerCredentials());
  EXPECT_EQ(WhyClosed(plain.address(), viewer, kPatience),
            ClosedBecause::kUnknown);
  EXPECT_EQ(WhyClosed(plain.address(), {}, absl::Seconds(1)),
            ClosedBecause::kUnknown);
  plain.Shutdown();
  EXPECT_EQ(WhyClosed(plain.address(), {}, kPatience), ClosedBecause::kUnknown);
}

}  // namespace
}  // namespace cohort
