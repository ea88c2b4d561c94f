#include "common/ops/closed_connection.h"

#include <algorithm>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ops/client_connection.h"

namespace cohort {
namespace {

// The beginning of HTTP/2 and an empty SETTINGS frame. A server that keeps the
// connection answers with its own settings.
constexpr char kHello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";

constexpr absl::string_view kClosedTexts[] = {
    "Socket closed", "Connection reset", "Broken pipe", "unexpected eof",
    "is not an HTTP server"};

}  // namespace

ClosedBecause WhyClosed(const std::string& address, const TlsFiles& tls,
                        absl::Duration timeout) {
  ClientConnection connection("server", address, SteadyClock().Now() + timeout);
  if (!connection.Open().ok()) return ClosedBecause::kUnknown;
  if (!tls.encrypted()) {
    return connection.AnswersHandshake() ? ClosedBecause::kServerSpeaksTls
                                         : ClosedBecause::kUnknown;
  }
  const absl::StatusOr<TlsContent> own = ReadTlsFiles(tls, absl::Now());
  // gRPC itself reports a handshake that fails on this side.
  if (!own.ok() || !connection.Encrypt(*own, "h2").ok()) {
    return ClosedBecause::kUnknown;
  }
  // With TLS 1.3 the server checks the client after the client's handshake.
  char answer[64];
  const bool sent =
      connection.Send(absl::string_view(kHello, sizeof(kHello) - 1)).ok();
  const absl::StatusOr<size_t> read =
      sent ? connection.Read(absl::MakeSpan(answer)) : 0;
  if (absl::IsDeadlineExceeded(read.status()) || (read.ok() && *read > 0)) {
    return ClosedBecause::kUnknown;
  }
  return tls.has_certificate() ? ClosedBecause::kOwnCertificate
                               : ClosedBecause::kNoCertificate;
}

absl::string_view Text(ClosedBecause cause) {
  switch (cause) {
    case ClosedBecause::kUnknown:
      return "";
    case ClosedBecause::kServerSpeaksTls:
      return "the server speaks TLS and this side does not; give --tls_ca, "
             "--tls_cert and --tls_key";
    case ClosedBecause::kNoCertificate:
      return "the server takes only clients with a certificate; give "
             "--tls_cert and --tls_key (it takes tokens only with "
             "--viewer_tokens)";
    case ClosedBecause::kOwnCertificate:
      return "the server does not accept this side's certificate: another "
             "authority than those in its --tls_ca issued it, or it has "
             "expired by the server's clock; the server's log says which";
  }
  return "";
}

bool IsClosedEarly(absl::string_view error) {
  return std::any_of(std::begin(kClosedTexts), std::end(kClosedTexts),
                     [error](absl::string_view text) {
                       return absl::StrContains(error, text);
                     });
}

}  // namespace cohort
