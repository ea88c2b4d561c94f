// The operations port with certificates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ops/client_connection.h"
#include "common/ops/http_server.h"
#include "common/ops/page_client.h"
#include "common/security/authenticator.h"
#include "common/security/small_file.h"
#include "tests/fakes/raw_http.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
        HttpServer::Start(options);
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
  // The answer to a client that presents a certificate without looking at it.
  std::string AnswerTo(const TlsFiles& files) {
    const TlsContent own = {.cert = *ReadSmallFile("", files.cert),
                            .key = *ReadSmallFile("", files.key),
                            .ca = *ReadSmallFile("", AuthorityOnly().ca)};
    ClientConnection connection("", server_->address(),
                                SteadyClock().Now() + absl::Seconds(20));
    EXPECT_TRUE(connection.Open().ok());
    EXPECT_TRUE(connection.Encrypt(own).ok());
    ExpectOk(
        connection.Send("GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    std::string answer;
    char buffer[1024];
    for (;;) {
      const auto read = connection.Read(absl::MakeSpan(buffer));
      if (!read.ok() || *read == 0) return answer;
      answer.append(buffer, *read);
    }
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
  // No tokens are taken, so a browser is not asked for one.
  EXPECT_EQ(StatusOf("/metrics", AuthorityOnly()), 403);
  EXPECT_EQ(StatusOf("/missing", AuthorityOnly()), 403);
  EXPECT_EQ(StatusOf("/livez", AuthorityOnly()), 200);
}

TEST_F(HttpsTest, ACertificateOfAnotherAuthorityIsNone) {
  TestAuthority other;
  TlsFiles files = other.Issue("operator");
  // The client itself would refuse to use it with this authority.
  EXPECT_THAT(
      Get("/metrics",
          {.cert = files.cert, .key = files.key, .ca = AuthorityOnly().ca}),
      IsError(kInvalidArgument, ""));
  // And it does not accept the server's.
  EXPECT_THAT(Get("/metrics", files),
              IsError(kUnauthenticated, "not accepted"));
}

TEST_F(HttpsTest, ACertificateThatIsNotAcceptedIsNamed) {
  const std::string expired =
      AnswerTo(authority_.Issue("viewer", "demo", -absl::Minutes(1)));
  EXPECT_THAT(expired, HasSubstr("got a certificate that has expired"));
  EXPECT_THAT(expired, HasSubstr(" 403 "));
  TestAuthority other;
  EXPECT_THAT(AnswerTo(other.Issue("viewer")),
              HasSubstr("an authority that is not in"));
}

TEST_F(HttpsTest, APasswordIsAskedForWhereTokensAreTaken) {
  const auto answer = [&](bool takes_tokens) {
    HttpServerOptions options{.listen = "127.0.0.1:0", .tls = content_};
    options.takes_tokens = takes_tokens;
    options.admit = [](absl::string_view /*page*/, const Presented&) {
      return absl::UnauthenticatedError("no");
    };
    server_ = *HttpServer::Start(options);
    return AnswerTo(authority_.Issue("viewer"));
  };
  EXPECT_THAT(answer(true), HasSubstr("WWW-Authenticate: Basic"));
  EXPECT_THAT(answer(false), Not(HasSubstr("WWW-Authenticate")));
}

TEST_F(HttpsTest, ClientsRefuseAPortOfAnotherRun) {
  EXPECT_THAT(Get("/livez", authority_.Issue("viewer", "other")),
              IsError(kUnauthenticated, "example.org/cohort/other"));
}

TEST_F(HttpsTest, PlaintextGetsNoAnswer) {
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("viewer")), 200);
  EXPECT_EQ(server_->handshake_failures(), 0);
  EXPECT_EQ(HttpGet(server_->address(), "/livez").status, 0);
  // The server's thread counts it once it has closed the connection.
  while (server_->handshake_failures() == 0) std::this_thread::yield();
  EXPECT_TRUE(absl::IsUnavailable(Get("/livez", {}).status()));
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
  EXPECT_TRUE(absl::IsUnauthenticated(Get("/livez", viewer).status()));
  EXPECT_EQ(StatusOf("/livez", authority_.Issue("viewer", "other")), 200);
}

TEST_F(HttpsTest, ACertificateThatCannotBeUsedChangesNothing) {
  TlsContent damaged = content_;
  damaged.key = "no key";
  EXPECT_EQ(server_->SetTls(damaged).code(), kUnavailable);
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("viewer")), 200);
  EXPECT_FALSE(server_->SetTls(damaged).ok());
  EXPECT_TRUE(server_->SetTls(content_).ok());
  EXPECT_EQ(StatusOf("/metrics", authority_.Issue("viewer")), 200);
}

}  // namespace
}  // namespace cohort
