#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/security/identity.h"

namespace cohort {

// The part of an X.509 certificate that decisions and error texts use.
struct Certificate {
  // One line, such as "CN=worker-3".
  std::string subject;
  std::string issuer;
  // Alternative names of the kind URI.
  std::vector<std::string> uris;
  absl::Time not_before;
  absl::Time not_after;
  // The SHA-256 of its DER form, as "0f:79:...", by which two are compared.
  std::string sha256;
};

// Every certificate of a PEM text, the holder's own first. `what` names the
// text in errors, such as "--tls_cert".
// Errors: InvalidArgument: no certificate, or damaged.
absl::StatusOr<std::vector<Certificate>> ParseCertificates(
    absl::string_view what, absl::string_view pem);

// A certificate in DER, as a TLS library holds it.
// Errors: InvalidArgument: damaged.
absl::StatusOr<Certificate> ParseDerCertificate(absl::string_view der);

// The identity of a certificate: its one alternative name that is a URI.
// Errors: InvalidArgument naming `what`: no URI, several, or another one.
absl::StatusOr<Identity> IdentityOf(absl::string_view what,
                                    const Certificate& certificate);

// Checks that `key` (PEM, not encrypted) is that of the first certificate in
// `certificates` (PEM).
// Errors: InvalidArgument naming --tls_key.
absl::Status CheckKey(absl::string_view certificates, absl::string_view key);

// Checks that a chain (PEM, the holder's own first) is valid at `now` and ends
// at one of `authorities` (PEM).
// Errors: InvalidArgument naming `what`, with the verifier's reason.
absl::Status CheckChain(absl::string_view what, absl::string_view chain,
                        absl::string_view authorities, absl::Time now);

}  // namespace cohort
