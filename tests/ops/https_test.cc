// The operations port with certificates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "common/ops/http_server.h"
#include "common/ops/page_client.h"
#include "common/security/authenticator.h"
#include "tests/fakes/raw_http.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

class HttpsTest : public testing::Test {
 protected:
  void SetUp() override {
    content_ = *ReadTlsFiles(authority_.Issue("server/0"), absl::Now());
    readers_ = std::make_unique<Authenticator>(*content_.identity, nullptr);
    HttpServerOptions options{.listen = "127.0.0.1:0", .tls = content_};
    options.routes["/metrics"] = [] { return HttpResponse{.body = "x 1\n"}; };
    options.routes["/livez"] = [] { return HttpResponse{.body = "alive\n"}; };
    options.admit = [this](absl::string_view /*page*/,
                           const Presented& presented) {
      return readers_->CheckPageReader(presented);
    };
    absl::StatusOr<std::unique_ptr<HttpServer>> server =
        StartHttpServer(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  absl::StatusOr<Page> Get(const std::string& path, const TlsFiles& files) {
    return FetchPage({.address = server_->address(),
                      .path = path,
                      .timeout = absl::Seconds(20),
                      .tls = files});
  }
  // The HTTP status; 0 if there was no answer.
  int StatusOf(const std::string& path, const TlsFiles& files) {
    const absl::StatusOr<Page> page = Get(path, files);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->status : 0;
  }
  TlsFiles AuthorityOnly() { return {.ca = authority_.Issue("viewer").ca}; }

  TestAuthority authority_;
  TlsContent content_;
  std::unique_ptr<Authenticator> readers_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpsTest, RolesDecideAndProbesAreOpen) {
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("viewer")), 200);
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("operator")), 200);
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("worker/0")), 403);
  EXPECT_EQ(StatusOf("/metrics", AuthorityOnly()), 401);
  EXPECT_EQ(StatusOf("/missing", AuthorityOnly()), 401);
  EXPECT_EQ(StatusOf("/livez", AuthorityOnly()), 200);
}

TEST_F(HttpsTest, ACertificateOfAnotherAuthorityIsNone) {
  TestAuthority other;
  TlsFiles files = other.Issue("operator");
  // The client itself would refuse to use it with this authority.
  const absl::Status unusable =
      Get("/metrics",
          {.cert = files.cert, .key = files.key, .ca = AuthorityOnly().ca})
          .status();
  EXPECT_EQ(unusable.code(), absl::StatusCode::kInvalidArgument);
  // And it does not accept the server's.
  const absl::Status refused = Get("/metrics", files).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("not accepted"));
}

TEST_F(HttpsTest, ClientsRefuseAPortOfAnotherRun) {
  const absl::Status refused =
      Get("/livez", authority_.Issue("viewer", "other")).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("want one of the run spiffe://example.org/cohort/"
                        "other"));
}

TEST_F(HttpsTest, PlaintextGetsNoAnswer) {
  EXPECT_EQ(HttpGet(server_->address(), "/livez").status, 0);
  const absl::Status plain = Get("/livez", {}).status();
  EXPECT_EQ(plain.code(), absl::StatusCode::kUnavailable);
}

TEST_F(HttpsTest, ANewCertificateIsServedWithoutARestart) {
  const TlsFiles viewer = authority_.Issue("viewer");
  for (int i = 0; i < 3; ++i) {
    const TlsContent next = *ReadTlsFiles(
        authority_.Issue("server/0", "demo", absl::Hours(30)), absl::Now());
    ASSERT_TRUE(server_->SetTls(next).ok());
    EXPECT_EQ(StatusOf("/metrics", viewer), 200);
  }
  // One of another run, so that clients notice which is served.
  const TlsContent other =
      *ReadTlsFiles(authority_.Issue("server/0", "other"), absl::Now());
  ASSERT_TRUE(server_->SetTls(other).ok());
  EXPECT_EQ(Get("/livez", viewer).status().code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(StatusOf("/livez", authority_.Issue("viewer", "other")), 200);
}

TEST_F(HttpsTest, ACertificateThatCannotBeUsedChangesNothing) {
  TlsContent damaged = content_;
  damaged.key = "no key";
  EXPECT_EQ(server_->SetTls(damaged).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("viewer")), 200);
  EXPECT_FALSE(server_->SetTls(damaged).ok());
  EXPECT_TRUE(server_->SetTls(content_).ok());
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("viewer")), 200);
}

}  // namespace
}  // namespace cohort
