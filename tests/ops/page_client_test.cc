#include "common/ops/page_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/file_descriptor.h"
#include "common/ops/http_server.h"
#include "common/ops/listen_socket.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

std::unique_ptr<HttpServer> Serve() {
  auto server = HttpServer::Start(
      {.listen = "127.0.0.1:0",
       .routes = {{"/good", [] { return HttpResponse{.body = "yes\n"}; }},
                  {"/bad", [] {
                     return HttpResponse{.status = 503, .body = "not yet\n"};
                   }}}});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Listens, and never answers: the system accepts connections for it.
class SilentServer {
 public:
  SilentServer() : fd_(ListenSocket::Open("--x", address_)->Release()) {}
  std::string address() const { return address_.ToString(); }

 private:
  ListenAddress address_{.host = "127.0.0.1", .port = 0};
  const FileDescriptor fd_;
};

TEST(PageClientTest, GetsStatusAndBody) {
  const std::unique_ptr<HttpServer> server = Serve();
  const auto good = OkValue(FetchPage({.address = server->address(),
                                       .path = "/good",
                                       .timeout = absl::Seconds(20)}));
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.body, "yes\n");
  const auto bad = OkValue(FetchPage({.address = server->address(),
                                      .path = "/bad",
                                      .timeout = absl::Seconds(20)}));
  EXPECT_EQ(bad.status, 503);
  EXPECT_EQ(bad.body, "not yet\n");
}

TEST(PageClientTest, TriesAllAddressesOfAName) {
  const std::unique_ptr<HttpServer> server = Serve();
  const std::string port =
      server->address().substr(server->address().rfind(':'));
  // The name usually has [::1] too, where nothing listens.
  const auto page =
      OkValue(FetchPage({.address = absl::StrCat("localhost", port),
                         .path = "/good",
                         .timeout = absl::Seconds(20)}));
  EXPECT_EQ(page.body, "yes\n");
}

TEST(PageClientTest, NobodyThereIsUnavailable) {
  std::string address;
  address = Serve()->address();
  EXPECT_THAT(
      FetchPage(
          {.address = address, .path = "/good", .timeout = absl::Seconds(20)}),
      IsError(kUnavailable, absl::StrCat(address, ": Connection refused")));
}

TEST(PageClientTest, SilenceEndsAtTheDeadline) {
  const SilentServer server;
  EXPECT_THAT(FetchPage({.address = server.address(),
                         .path = "/good",
                         .timeout = absl::Milliseconds(20)}),
              IsError(kDeadlineExceeded, "no answer in time"));
}

TEST(PageClientTest, AnAddressWithoutPortIsRefused) {
  EXPECT_THAT(
      FetchPage(
          {.address = "localhost", .path = "/", .timeout = absl::Seconds(1)}),
      IsError(kInvalidArgument, "--ops: got"));
}

}  // namespace
}  // namespace cohort
