#include "common/ops/http_server.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/raw_http.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

HttpServerOptions SmallSite() {
  HttpServerOptions options{.listen = "127.0.0.1:0"};
  options.routes["/"] = [] {
    return HttpResponse{.content_type = "text/html", .body = "<p>hello</p>"};
  };
  options.routes["/fixed.js"] = [] {
    return HttpResponse{.content_type = "text/javascript",
                        .fixed_body = "let a = 1;"};
  };
  options.routes["/?more=1"] = [] { return HttpResponse{.body = "more"}; };
  return options;
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    absl::StatusOr<std::unique_ptr<HttpServer>> started =
        HttpServer::Start(SmallSite());
    if (started.ok()) server_ = *std::move(started);
  }
  void SetUp() override { ASSERT_NE(server_, nullptr); }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersItsPathsWithTypeAndBody) {
  const HttpAnswer answer = HttpGet(server_->address(), "/");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "<p>hello</p>");
  EXPECT_THAT(answer.headers, HasSubstr("Content-Type: text/html"));
  EXPECT_EQ(HttpGet(server_->address(), "/fixed.js").body, "let a = 1;");
}

TEST_F(HttpServerTest, AQueryOfItsOwnHasAnAnswerOfItsOwn) {
  EXPECT_EQ(HttpGet(server_->address(), "/?more=1").body, "more");
  EXPECT_EQ(HttpGet(server_->address(), "/?more=2").body, "<p>hello</p>");
  EXPECT_EQ(HttpGet(server_->address(), "/%3Fmore=1").status, 404);
}

TEST_F(HttpServerTest, HeadHasHeadersAndNoBody) {
  const HttpAnswer answer = HttpRequest(server_->address(), "HEAD", "/");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  EXPECT_THAT(answer.headers, HasSubstr("Content-Length: 12"));
}

TEST_F(HttpServerTest, ForbidsWhatAPageOfOursNeverNeeds) {
  const std::string headers = HttpGet(server_->address(), "/").headers;
  EXPECT_THAT(headers, HasSubstr("Content-Security-Policy: default-src 'none'; "
                                 "script-src 'self'; style-src 'self'"));
  EXPECT_THAT(headers, HasSubstr("frame-ancestors 'none'"));
  EXPECT_FALSE(absl::StrContains(headers, "unsafe"));
  EXPECT_THAT(headers, HasSubstr("X-Content-Type-Options: nosniff"));
  EXPECT_THAT(headers, HasSubstr("Cache-Control: no-store"));
}

TEST_F(HttpServerTest, UnknownPathIsNotFoundAndNamesTheOthers) {
  const HttpAnswer answer = HttpGet(server_->address(), "/etc/passwd");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.body, "not found; available pages: / /?more=1 /fixed.js\n");
}

TEST_F(HttpServerTest, OtherMethodsAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE"}) {
    const HttpAnswer answer = HttpRequest(server_->address(), method, "/",
                                          "localhost", "Content-Length: 0\r\n");
    EXPECT_EQ(answer.status, 405) << method;
    EXPECT_THAT(answer.headers, HasSubstr("Allow: GET, HEAD")) << method;
  }
}

// A foreign web page that has pointed its own name at 127.0.0.1.
TEST_F(HttpServerTest, ForeignHostIsRefused) {
  const HttpAnswer answer =
      HttpRequest(server_->address(), "GET", "/", "evil.example:80");
  EXPECT_EQ(answer.status, 421);
  EXPECT_THAT(answer.body, HasSubstr(server_->address()));
}

TEST(HttpHostTest, OnlyNamesOfLoopbackMatch) {
  for (const char* host : {"localhost", "LocalHost:7071", "127.0.0.1:7071",
                           "127.1.2.3", "[::1]:7071", "[::1]", "own.name:1"}) {
    EXPECT_TRUE(IsLoopbackHost(host, "own.name")) << host;
  }
  for (const char* host :
       {"evil.example", "127.0.0.1.evil.example", "localhost.evil.example",
        "10.0.0.1:7071", ":7071", "[::2]", "127.evil", "127.0.0.1:x.example"}) {
    EXPECT_FALSE(IsLoopbackHost(host, "127.0.0.1")) << host;
  }
}

TEST_F(HttpServerTest, PortInUseIsNamedWithAWayOut) {
  const absl::Status second =
      HttpServer::Start({.listen = server_->address()}).status();
  EXPECT_TRUE(absl::IsUnavailable(second));
  EXPECT_THAT(std::string(second.message()),
              testing::AllOf(HasSubstr("--ops_listen: cannot listen on " +
                                       server_->address()),
                             HasSubstr("another process uses the port"),
                             HasSubstr("--ops_listen=127.0.0.1:0")));
}

TEST(HttpServerStartTest, AddressesThatCannotWorkAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      HttpServer::Start({.listen = "nonsense"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      HttpServer::Start({.listen = "0.0.0.0:0"}).status()));
  // Addresses reserved for documentation belong to no machine.
  EXPECT_TRUE(absl::IsUnavailable(
      HttpServer::Start({.listen = "192.0.2.1:0", .insecure = true}).status()));
}

TEST(HttpServerStartTest, BeyondLoopbackAnyHostIsAnswered) {
  HttpServerOptions options = SmallSite();
  options.listen = "0.0.0.0:0";
  options.insecure = true;
  const auto server = OkValue(HttpServer::Start(options));
  EXPECT_EQ(HttpRequest(server->address(), "GET", "/", "trainer-7").status,
            200);
}

}  // namespace
}  // namespace cohort
