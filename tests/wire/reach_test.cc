#include "common/wire/reach.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/wire/channel.h"
#include "common/wire/security.h"
#include "tests/fakes/small_grpc_server.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status ReachAt(const std::string& address, const TlsFiles& tls) {
  SharedSecurity security;
  if (tls.encrypted()) security = *Security::Load(tls);
  return Reach(MakeChannel(address, ChannelPurpose::kBulk, security), address,
               tls, absl::Seconds(20));
}

class ReachTest : public ::testing::Test {
 protected:
  std::shared_ptr<grpc::ServerCredentials> Encrypted() {
    return (*Security::Load(authority_.Issue("server/1")))
        ->ForServer(/*require_certificate=*/true);
  }

  TestAuthority authority_;
};

TEST_F(ReachTest, AServerThatAnswersAnything) {
  SmallGrpcServer plain(grpc::InsecureServerCredentials());
  EXPECT_TRUE(ReachAt(plain.address(), {}).ok());
  const SmallGrpcServer encrypted(Encrypted());
  ExpectOk(ReachAt(encrypted.address(), authority_.Issue("server/0")));
}

TEST_F(ReachTest, NobodyIsThere) {
  SmallGrpcServer server(grpc::InsecureServerCredentials());
  server.Shutdown();
  EXPECT_THAT(ReachAt(server.address(), {}),
              IsError(kUnavailable, "cannot be reached (Connection refused)"));
}

TEST_F(ReachTest, OneSideSpeaksTls) {
  const SmallGrpcServer encrypted(Encrypted());
  EXPECT_THAT(std::string(ReachAt(encrypted.address(), {}).message()),
              AllOf(StartsWith("no connection: "), HasSubstr("speaks TLS")));
  SmallGrpcServer plain(grpc::InsecureServerCredentials());
  EXPECT_THAT(
      std::string(
          ReachAt(plain.address(), authority_.Issue("server/0")).message()),
      StartsWith("no connection: "));
}

TEST_F(ReachTest, CertificatesOfAnotherAuthority) {
  const SmallGrpcServer server(Encrypted());
  TestAuthority other;
  TlsFiles files = other.Issue("server/0");
  EXPECT_THAT(std::string(ReachAt(server.address(), files).message()),
              StartsWith("no connection: "));
  // This side trusts both.
  const std::string both = other.File("both.crt");
  WriteText(both, ReadText(files.ca) + ReadText(authority_.Issue("viewer").ca));
  files.ca = both;
  EXPECT_THAT(ReachAt(server.address(), files),
              IsError(kUnavailable, "this side's certificate"));
}

TEST_F(ReachTest, AServerWithTheRoleOfAWorker) {
  const SmallGrpcServer server((*Security::Load(authority_.Issue("worker/1")))
                                   ->ForServer(/*require_certificate=*/true));
  EXPECT_THAT(
      std::string(
          ReachAt(server.address(), authority_.Issue("server/0")).message()),
      StartsWith("no connection: "));
}

}  // namespace
}  // namespace cohort
