#include <algorithm>
#include <ostream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/ops/closed_connection.h"
#include "common/ops/page_client.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::string_view kOpsDefault = "127.0.0.1:7071";
constexpr int kHttpOk = 200;
// Limit on finding out whether the port speaks HTTPS.
constexpr absl::Duration kHttpsProbeMax = absl::Seconds(2);

// Queries the operations port, not the server's port, because orchestrators do,
// and because workers have one too.
absl::Status RunHealth(Context& context) {
  const std::string address =
      context.arguments.Value("ops").value_or(std::string(kOpsDefault));
  const TlsFiles& tls = context.server.target().tls;
  const bool live = context.arguments.Has("live");
  const absl::StatusOr<Page> page =
      FetchPage({.address = address,
                 .path = live ? "/livez" : "/readyz",
                 .timeout = context.timeout,
                 .tls = tls});
  if (!page.ok() && IsClosedEarly(page.status().message()) &&
      WhyClosed(address, tls, std::min(context.timeout, kHttpsProbeMax)) ==
          ClosedBecause::kServerSpeaksTls) {
    return absl::UnavailableError(
        absl::StrCat(address,
                     ": this port speaks HTTPS\nGive --tls_ca, the authority "
                     "of its certificate; health needs no certificate of its "
                     "own"));
  }
  COHORT_RETURN_IF_ERROR(
      WithNext(page.status(), absl::StatusCode::kUnavailable,
               "--ops is the address that the process has as --ops_listen"));
  const std::string said(absl::StripAsciiWhitespace(page->body));
  const bool good = page->status == kHttpOk;
  if (context.json) {
    context.io.out << JsonLine(
        {{live ? "live" : "ready", good}, {"message", said}});
  }
  if (!good) {
    return absl::InternalError(absl::StrCat(
        address, live ? " is not live: " : " is not ready: ", said));
  }
  if (!context.json) context.io.out << said << "\n";
  return absl::OkStatus();
}

}  // namespace

Verb HealthVerb() {
  return {
      .name = "health",
      .summary = "checks whether a process is ready, at its operations port",
      .flags = {{"ops", "HOST:PORT",
                 "operations port of a server or worker (default "
                 "127.0.0.1:7071)"},
                {"live", "", "check only that the process responds"}},
      .contacts = Contacts::kOperationsPort,
      .examples = {"cohortctl health",
                   "cohortctl health --ops=127.0.0.1:7072 --timeout=3s"},
      .run = &RunHealth};
}

}  // namespace cohort
