

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/ops/http_server.h"
#include "tests/fakes/raw_http.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

constexpr char kBody[] = "one whole page\n";

// Sends `input` to a server, and what came back by the time that the server has
// answered another client. It has one thread, so it has read the input by then.
std::string Exchange(const std::string& address, absl::string_view input) {
  const RawConnection connection(address);
  COHORT_CHECK(connection.connected(), "no connection to the server");
  connection.Send(input);
  COHORT_CHECK(HttpGet(address, "/").body == kBody,
               "another client gets no answer");
  return connection.ReadSome(0);
}

// Everything that the server ever answers is one of its pages.
void CheckAnswers(absl::string_view all) {
  static const std::set<int>& known =
      *new std::set<int>{200, 100, 400, 403, 404, 405, 411, 413,
                         414, 417, 421, 431, 500, 501, 505};
  if (all.empty()) return;
  COHORT_CHECK(absl::StartsWith(all, "HTTP/1."),
               absl::StrCat("got ", all.substr(0, 40)));
  int status = 0;
  COHORT_CHECK(
      absl::SimpleAtoi(all.substr(9, 3), &status) && known.contains(status),
      absl::StrCat("got ", all.substr(0, 40)));
  // Pages are for people; no answer may be taken for another site's.
  if (status == 200) {
    COHORT_CHECK(absl::StrContains(all, "X-Frame-Options"),
                 "an answer without its headers");
  }
}

void RunHttp(absl::string_view input) {
  static const std::unique_ptr<HttpServer>& server =
      *new std::unique_ptr<HttpServer>([] {
        HttpServerOptions options{.listen = "127.0.0.1:0"};
        options.routes["/"] = [] { return HttpResponse{.body = kBody}; };
        options.routes["/metrics"] = options.routes["/"];
        auto started = HttpServer::Start(options);
        COHORT_CHECK(started.ok(), started.status().ToString());
        return *std::move(started);
      }());
  CheckAnswers(Exchange(server->address(), input));
  const absl::string_view host = Reader(input).Until('\n');
  if (IsLoopbackHost(host, "127.0.0.1")) {
    COHORT_CHECK(!absl::StrContains(host, "example"), "another site's name");
  }
}

std::vector<std::string> HttpSeeds() {
  return {"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
          "HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
          "GET / HTTP/1.0\r\n\r\n",
          absl::StrCat("GET /a?b=%zz&c HTTP/1.1\r\nHost: example.org\r\n",
                       "Cookie: a=b; c=\"d\"\r\n\r\n"),
          "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
          "\r\n5\r\nhello\r\n0\r\n\r\n",
          "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
          "Expect: 100-continue\r\n\r\nhello",
          "GET / HTTP/1.1\r\nHost: localhost\r\n"
          "Authorization: Basic YTpi\r\n\r\n"
          "GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n"};
}

}  // namespace

Target HttpTarget() {
  return {.name = "http",
          .run = RunHttp,
          .seeds = HttpSeeds,
          .input_bytes_max = 1024,
          .mutations = 300};
}

}  // namespace cohort::fuzz
