#include "common/wire/security.h"

#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/wire/status.h"

namespace cohort {
namespace {

using grpc::experimental::CertificateProviderInterface;
using grpc::experimental::CertificateVerifier;
using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr unsigned int kRefreshSeconds = 1;

// Null for plaintext.
std::shared_ptr<CertificateProviderInterface> Reading(
    const CheckedFiles* files) {
  if (files == nullptr) return nullptr;
  const std::string own = files->cert_and_key_path();
  if (own.empty()) {
    return std::make_shared<FileWatcherCertificateProvider>(files->ca_path(),
                                                            kRefreshSeconds);
  }
  // gRPC takes from each path only the kind of PEM block that it looks for.
  return std::make_shared<FileWatcherCertificateProvider>(
      own, own, files->ca_path(), kRefreshSeconds);
}

// Accepts servers by their identity instead of their host name: an address may
// be that of any machine that a scheduler chose.
class ServerVerifier final : public ExternalCertificateVerifier {
 public:
  explicit ServerVerifier(std::optional<Identity> own) : own_(std::move(own)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/,
              grpc::Status* sync_status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) {
      uris.emplace_back(uri.data(), uri.size());
    }
    *sync_status = ToGrpcStatus(CheckServer(uris, own_));
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::optional<Identity> own_;
};

struct Reason {
  // Part of gRPC's or OpenSSL's text.
  absl::string_view seen;
  absl::string_view meaning;
};

constexpr Reason kReasons[] = {
    {"wrong version number",
     "the other side does not speak TLS; give it certificates too, or none to "
     "this side"},
    {"certificate has expired",
     "the other side's certificate has expired, or a clock is wrong; renew the "
     "certificate"},
    {"certificate expired",
     "the server says that this process's certificate has expired; renew the "
     "file of --tls_cert"},
    {"unknown ca",
     "the server does not know the authority of this process's certificate; "
     "compare --tls_ca of both"},
    {"certificate is not yet valid",
     "the other side's certificate is not valid yet, or a clock is wrong"},
    {"unable to get local issuer certificate",
     "the other side's certificate was issued by another authority than those "
     "in --tls_ca"},
    {"self-signed certificate",
     "the other side's certificate was issued by another authority than those "
     "in --tls_ca"},
    {"certificate verify failed",
     "the other side's certificate is not valid, or was issued by another "
     "authority than those in --tls_ca; cohortctl certs show prints both"},
    {"certificate required",
     "the server requires a certificate; give --tls_cert and --tls_key"},
    {"did not return a certificate",
     "the client has no certificate; give it --tls_cert and --tls_key"},
};

}  // namespace

absl::Status CheckServer(const std::vector<std::string>& seen,
                         const std::optional<Identity>& own) {
  for (const std::string& uri : seen) {
    const absl::StatusOr<Identity> identity = ParseIdentity(uri);
    if (!identity.ok() || identity->role != PeerRole::kServer) continue;
    if (!own.has_value() ||
        (identity->domain == own->domain && identity->run == own->run)) {
      return absl::OkStatus();
    }
  }
  const std::string wanted =
      own.has_value() ? absl::StrCat("spiffe://", own->domain, "/cohort/",
                                     own->run, "/server/0")
                      : "spiffe://DOMAIN/cohort/RUN/server/0";
  return absl::UnauthenticatedError(absl::StrCat(
      "the server's certificate is for ",
      seen.empty() ? "no URI" : absl::StrJoin(seen, ", "), ", want ", wanted,
      " (of a data shard: /server/1 and so on)"));
}

absl::StatusOr<std::shared_ptr<Security>> Security::Load(
    const TlsFiles& files, TlsWatcher::OnMessage on_message) {
  COHORT_ASSIGN_OR_RETURN(const TlsContent content,
                          ReadTlsFiles(files, absl::Now()));
  std::unique_ptr<CheckedFiles> checked;
  if (files.encrypted()) {
    COHORT_ASSIGN_OR_RETURN(checked, CheckedFiles::Create(content));
  }
  return std::shared_ptr<Security>(
      new Security(files, content, std::move(checked), on_message));
}

Security::Security(const TlsFiles& files, const TlsContent& content,
                   std::unique_ptr<CheckedFiles> checked,
                   const TlsWatcher::OnMessage& on_message)
    : identity_(content.identity),
      files_(std::move(checked)),
      provider_(Reading(files_.get())),
      watcher_(
          files, content, [this](const TlsContent& now) { return Take(now); },
          on_message) {}

void Security::Notify(TlsWatcher::OnChange on_change) {
  MutexLock lock(mu_);
  on_change_ = std::move(on_change);
}

absl::Status Security::Take(const TlsContent& content) {
  COHORT_RETURN_IF_ERROR(files_->Replace(content));
  TlsWatcher::OnChange on_change;
  {
    MutexLock lock(mu_);
    on_change = on_change_;
  }
  return on_change == nullptr ? absl::OkStatus() : on_change(content);
}

std::shared_ptr<grpc::ChannelCredentials> Security::ForChannel() const {
  if (!encrypted()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  if (identity().has_value()) options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<ServerVerifier>(identity()));
  options.set_check_call_host(false);
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> Security::ForServer(
    bool require_certificate) const {
  if (!encrypted()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(
      require_certificate
          ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
          : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::optional<std::string> HandshakeFailure(absl::string_view message) {
  const std::string lower = absl::AsciiStrToLower(message);
  for (const Reason& reason : kReasons) {
    if (absl::StrContains(lower, reason.seen)) {
      return std::string(reason.meaning.data(), reason.meaning.size());
    }
  }
  constexpr absl::string_view kVerifier = "the server's certificate is for ";
  const size_t at = message.find(kVerifier);
  if (at == absl::string_view::npos) return std::nullopt;
  message.remove_prefix(at);
  return std::string(message.data(), message.size());
}

}  // namespace cohort
