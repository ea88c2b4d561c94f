#include "common/ops/page_client.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ops/client_connection.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr size_t kAnswerBytesMax = size_t{1} << 20;

absl::StatusOr<std::string> ReadToEnd(const std::string& address,
                                      ClientConnection& connection) {
  std::string all;
  char buffer[4096];
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(const size_t n,
                            connection.Read(absl::MakeSpan(buffer)));
    if (n == 0) return all;
    all.append(buffer, n);
    if (all.size() > kAnswerBytesMax) {
      return absl::UnavailableError(
          absl::StrCat(address, ": the answer is incomplete"));
    }
  }
}

absl::StatusOr<Page> ParsePage(absl::string_view address,
                               const std::string& answer) {
  Page page;
  const size_t end = answer.find("\r\n\r\n");
  if (!absl::StartsWith(answer, "HTTP/1.") || end == answer.npos ||
      !absl::SimpleAtoi(answer.substr(9, 3), &page.status)) {
    return absl::UnavailableError(
        absl::StrCat(address, ": the peer is not an HTTP server"));
  }
  page.body = answer.substr(end + 4);
  return page;
}

}  // namespace

absl::StatusOr<Page> FetchPage(const PageRequest& request) {
  const std::string& address = request.address;
  const Instant deadline = SteadyClock().Now() + request.timeout;
  COHORT_ASSIGN_OR_RETURN(const TlsContent tls,
                          ReadTlsFiles(request.tls, absl::Now()));
  ClientConnection connection("--ops", address, deadline);
  COHORT_RETURN_IF_ERROR(connection.Open());
  if (request.tls.encrypted()) {
    COHORT_RETURN_IF_ERROR(connection.Encrypt(tls));
  }
  const std::string authorization =
      request.token.empty()
          ? ""
          : absl::StrCat("Authorization: Bearer ", request.token, "\r\n");
  // HTTP/1.0: the answer ends with the connection and comes in one piece.
  COHORT_RETURN_IF_ERROR(connection.Send(
      absl::StrCat("GET ", request.path, " HTTP/1.0\r\nHost: ", address, "\r\n",
                   authorization, "\r\n")));
  COHORT_ASSIGN_OR_RETURN(const std::string answer,
                          ReadToEnd(address, connection));
  return ParsePage(address, answer);
}

}  // namespace cohort
