#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/identity.h"

namespace cohort {

// The flags --tls_cert, --tls_key and --tls_ca, which all programs have: paths
// of PEM files. All empty: connections are not encrypted. A client may have
// only --tls_ca: it is then known by a token, or not at all.
struct TlsFiles {
  // The own certificate, followed by those between it and the authority.
  std::string cert;
  std::string key;
  // The authorities whose certificates are accepted from others.
  std::string ca;

  bool encrypted() const { return !ca.empty(); }
  bool has_certificate() const { return !cert.empty(); }

  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

// The content of the files at one moment.
struct TlsContent {
  // Empty without a certificate.
  std::string cert;
  std::string key;
  std::string ca;
  // Absent without a certificate.
  std::optional<Identity> identity;
  absl::Time not_after = absl::InfiniteFuture();

  friend bool operator==(const TlsContent&, const TlsContent&) = default;
};

// Reads and checks the files: certificate, key and authorities must belong
// together, the certificate must be valid at `now` and have one identity.
// Errors: InvalidArgument naming the flag and the file.
absl::StatusOr<TlsContent> ReadTlsFiles(const TlsFiles& files, absl::Time now);

// Checks only which of the flags were given.
// Errors: InvalidArgument naming the flag that is missing.
absl::Status CheckTlsFlags(const TlsFiles& files);

}  // namespace cohort
