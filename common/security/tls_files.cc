#include "common/security/tls_files.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/security/certificate.h"
#include "common/security/small_file.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// `status`, with the file that it is about in its text.
absl::Status InFile(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), " (file ", path, ")"));
}

}  // namespace

absl::Status CheckTlsFlags(const TlsFiles& files) {
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        files.cert.empty() ? "--tls_key: got a key, want --tls_cert too"
                           : "--tls_cert: got a certificate, want --tls_key "
                             "too");
  }
  if (!files.cert.empty() && files.ca.empty()) {
    return absl::InvalidArgumentError(
        "--tls_cert: got a certificate, want --tls_ca too: the authorities "
        "whose certificates are accepted from others");
  }
  return absl::OkStatus();
}

absl::StatusOr<TlsContent> ReadTlsFiles(const TlsFiles& files, absl::Time now) {
  COHORT_RETURN_IF_ERROR(CheckTlsFlags(files));
  TlsContent content;
  if (!files.encrypted()) return content;
  COHORT_ASSIGN_OR_RETURN(content.ca, ReadSmallFile("--tls_ca", files.ca));
  COHORT_RETURN_IF_ERROR(
      InFile(files.ca, ParseCertificates("--tls_ca", content.ca).status()));
  if (!files.has_certificate()) return content;
  COHORT_ASSIGN_OR_RETURN(content.cert,
                          ReadSmallFile("--tls_cert", files.cert));
  COHORT_ASSIGN_OR_RETURN(content.key, ReadSmallFile("--tls_key", files.key));
  const absl::StatusOr<std::vector<Certificate>> chain =
      ParseCertificates("--tls_cert", content.cert);
  if (!chain.ok()) return InFile(files.cert, chain.status());
  COHORT_RETURN_IF_ERROR(
      InFile(files.key, CheckKey(content.cert, content.key)));
  COHORT_RETURN_IF_ERROR(InFile(
      files.cert, CheckChain("--tls_cert", content.cert, content.ca, now)));
  const absl::StatusOr<Identity> identity =
      IdentityOf("--tls_cert", chain->front());
  if (!identity.ok()) return InFile(files.cert, identity.status());
  content.identity = *identity;
  content.not_after = chain->front().not_after;
  return content;
}

}  // namespace cohort
