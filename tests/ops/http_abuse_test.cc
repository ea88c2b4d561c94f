// A port must survive garbage, and clients that take for ever.

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/ops/http_server.h"
#include "gtest/gtest.h"
#include "tests/fakes/raw_http.h"

namespace cohort {
namespace {

std::unique_ptr<HttpServer> BigPageServer(const std::string& page) {
  HttpServerOptions options{.listen = "127.0.0.1:0"};
  options.routes["/"] = [&page] { return HttpResponse{.body = page}; };
  auto server = HttpServer::Start(options);
  return server.ok() ? *std::move(server) : nullptr;
}

std::string Mutated(std::string request, std::mt19937& chance) {
  const int changes = 1 + static_cast<int>(chance() % 6);
  for (int i = 0; i < changes && !request.empty(); ++i) {
    const size_t at = chance() % request.size();
    switch (chance() % 4) {
      case 0:
        request[at] = static_cast<char>(chance() % 256);
        break;
      case 1:
        request.erase(at, 1 + chance() % 8);
        break;
      case 2:
        request.insert(at, std::string(chance() % 64, '\r'));
        break;
      default:
        request.insert(at, request.substr(0, chance() % 512));
    }
  }
  return request;
}

TEST(HttpAbuseTest, MalformedRequestsNeverBringItDown) {
  const std::string page = "whole";
  const std::unique_ptr<HttpServer> server = BigPageServer(page);
  ASSERT_NE(server, nullptr);
  std::vector<std::string> seeds = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET /%00%ff/../..//etc/passwd?a=%zz&&&= HTTP/1.1\r\nHost: a\r\n\r\n",
      absl::StrCat("POST / HTTP/1.1\r\nHost: localhost\r\n",
                   "Transfer-Encoding: chunked\r\n",
                   "\r\nffffffffffffffff\r\nx"),
      "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
      "GET / HTTP/9.9\r\n: \r\n\t folded\r\n\r\n",
      std::string("\0\0\0\x16\x03\x01", 6),
      "GET /" + std::string(40000, 'a') + " HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nX: " + std::string(40000, 'b') + "\r\n\r\n"};
  std::mt19937 chance(6);
  for (int round = 0; round < 300; ++round) {
    const std::string request =
        Mutated(seeds[static_cast<size_t>(round) % seeds.size()], chance);
    const RawConnection connection(server->address());
    ASSERT_TRUE(connection.connected()) << "round " << round;
    connection.Send(request);
    // Some requests are answered; for others the server waits for an end that
    // never comes.
    connection.ReadSome(10);
  }
  EXPECT_EQ(HttpGet(server->address(), "/").body, page);
}

TEST(HttpAbuseTest, TooLongHeadersAreRefusedNotKept) {
  const std::string page = "whole";
  const std::unique_ptr<HttpServer> server = BigPageServer(page);
  ASSERT_NE(server, nullptr);
  const HttpAnswer answer =
      HttpRequest(server->address(), "GET", "/", "localhost",
                  "X-Long: " + std::string(size_t{64} << 10, 'x') + "\r\n");
  EXPECT_NE(answer.status, 200);
}

// 200 clients that request a large page and read nothing, or never end their
// request.
TEST(HttpAbuseTest, TwoHundredSlowClientsHoldUpNobody) {
  const std::string page(size_t{4} << 20, 'p');
  const std::unique_ptr<HttpServer> server = BigPageServer(page);
  ASSERT_NE(server, nullptr);
  std::vector<RawConnection> slow;
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(server->address());
    ASSERT_TRUE(slow.back().connected()) << i;
    slow.back().Send(i % 2 == 0 ? "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                : "GET / HTTP/1.1\r\nHo");
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(HttpGet(server->address(), "/").body.size(), page.size());
  }
}

// Clients that never end their requests, and reconnect when they are closed.
TEST(HttpAbuseTest, FourHundredUnfinishedRequestsHoldUpNoProbe) {
  const std::string page = "alive";
  const std::unique_ptr<HttpServer> server = BigPageServer(page);
  ASSERT_NE(server, nullptr);
  std::vector<std::unique_ptr<RawConnection>> slow(400);
  for (int probe = 0; probe < 18; ++probe) {
    for (std::unique_ptr<RawConnection>& client : slow) {
      if (client != nullptr && client->Send("x")) continue;
      client = std::make_unique<RawConnection>(server->address());
      client->Send("GET / HTTP/1.1\r\nHo");
    }
    EXPECT_EQ(HttpGet(server->address(), "/").body, page) << probe;
  }
}

}  // namespace
}  // namespace cohort
