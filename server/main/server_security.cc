#include "server/main/server_security.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "common/wire/security.h"

namespace cohort {
namespace {

constexpr absl::Duration kTokensInterval = absl::Seconds(2);

void LogTlsFiles(bool fault, const std::string& text) {
  Log(fault ? LogLevel::kError : LogLevel::kInfo, text);
}

std::string DeniedText(const DeniedCalls& calls) {
  return absl::StrCat("denied: ", calls.client, ", ", calls.target, " (",
                      RefusalName(calls.refusal), "), ", calls.count,
                      calls.count == 1 ? " call" : " calls");
}

}  // namespace

absl::Status Validate(const ServerSecurityOptions& options) {
  COHORT_RETURN_IF_ERROR(CheckTlsFlags(options.tls));
  if (options.tls.encrypted() && !options.tls.has_certificate()) {
    return absl::InvalidArgumentError(
        "--tls_ca: got authorities, want --tls_cert and --tls_key too: a "
        "server needs a certificate");
  }
  if (!options.viewer_tokens.empty() && !options.tls.encrypted()) {
    return absl::InvalidArgumentError(
        "--viewer_tokens: got a file, want --tls_cert, --tls_key and --tls_ca "
        "too: without encryption others can read the tokens");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ServerSecurity>> ServerSecurity::Open(
    const ServerSecurityOptions& options) {
  COHORT_RETURN_IF_ERROR(Validate(options));
  std::unique_ptr<ServerSecurity> opened(new ServerSecurity);
  COHORT_ASSIGN_OR_RETURN(opened->security_,
                          Security::Load(options.tls, &LogTlsFiles));
  COHORT_ASSIGN_OR_RETURN(opened->tokens_, Tokens::Load(options.viewer_tokens));
  if (!options.audit_log.empty()) {
    COHORT_ASSIGN_OR_RETURN(opened->audit_, AuditLog::Open(options.audit_log));
  }
  if (!opened->encrypted()) return opened;
  const Identity& own = *opened->security_->identity();
  if (own.role != PeerRole::kServer) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls_cert: got the certificate of ", own.Uri(),
                     ", want that of a server, such as spiffe://", own.domain,
                     "/cohort/", own.run,
                     "/server/0 (data shards: /server/1 "
                     "and so on)"));
  }
  opened->access_ = std::make_unique<AccessControl>(
      own, opened->tokens_.get(),
      [self = opened.get()](const std::vector<DeniedCalls>& denied) {
        self->OnDenied(denied);
      });
  return opened;
}

ServerSecurity::~ServerSecurity() = default;

bool ServerSecurity::encrypted() const { return security_->encrypted(); }

std::optional<TlsContent> ServerSecurity::tls() const {
  if (!encrypted()) return std::nullopt;
  return security_->content();
}

absl::Status ServerSecurity::NameRun(std::string& run_name) const {
  if (!encrypted()) return absl::OkStatus();
  const std::string& certified = security_->identity()->run;
  if (run_name.empty()) run_name = certified;
  if (run_name == certified) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--tls_cert: got a certificate for the run ", certified,
      ", want one for ", run_name, ", the name of this run (--run_name)"));
}

absl::Time ServerSecurity::not_after() const { return security_->not_after(); }

void ServerSecurity::Watch(TlsWatcher::OnChange on_change) {
  if (!encrypted()) return;
  security_->Notify(std::move(on_change));
  if (!tokens_->any()) return;
  token_task_ =
      std::make_unique<PeriodicTask>("viewer-tokens", kTokensInterval, [this] {
        const absl::Status read = tokens_->Refresh();
        if (!read.ok()) Log(LogLevel::kError, read.message());
      });
}

void ServerSecurity::StopWatching() {
  security_->StopWatching();
  token_task_.reset();
}

void ServerSecurity::OnDenied(const std::vector<DeniedCalls>& denied) {
  for (const DeniedCalls& calls : denied) {
    Log(LogLevel::kWarning, DeniedText(calls));
  }
  if (audit_ == nullptr) return;
  const absl::Status written = audit_->Denied(denied);
  if (!written.ok()) Log(LogLevel::kError, written.message());
}

}  // namespace cohort
