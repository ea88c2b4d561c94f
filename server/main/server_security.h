#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/periodic_task.h"
#include "common/security/tls_files.h"
#include "common/security/tls_watcher.h"
#include "common/security/tokens.h"
#include "common/wire/shared_security.h"
#include "server/access/access_control.h"
#include "server/access/audit_log.h"

namespace cohort {

struct ServerSecurityOptions {
  TlsFiles tls;
  // File of the hashes of viewers' tokens; none if empty.
  std::string viewer_tokens;
  // File of the record of changes; none if empty.
  std::string audit_log;
};

// Checks the combination of the options, without reading files.
// Errors: InvalidArgument naming the flag.
absl::Status Validate(const ServerSecurityOptions& options);

// Everything that decides who may do what on one server: certificates, tokens,
// rights and the record of changes.
// Thread safety: safe.
class ServerSecurity {
 public:
  // Errors: InvalidArgument: a file cannot be used, or the certificate is not a
  //   server's; FailedPrecondition: the record cannot be opened.
  static absl::StatusOr<std::unique_ptr<ServerSecurity>> Open(
      const ServerSecurityOptions& options);
  ~ServerSecurity();

  bool encrypted() const;
  SharedSecurity security() const { return security_; }
  // The newest content for an operations port; absent without encryption.
  std::optional<TlsContent> tls() const;
  // Sets the name of a run that has none to that of the certificate.
  // Errors: FailedPrecondition: the certificate is for another run.
  absl::Status NameRun(std::string& run_name) const;
  // Null without encryption.
  AccessControl* access() { return access_.get(); }
  // Null without --audit_log.
  AuditLog* audit() { return audit_.get(); }
  // When the certificate expires; InfiniteFuture without one.
  absl::Time not_after() const;

  // Reads the tokens again when they change. `on_change` gets the content of
  // new TLS files, on a separate thread; it may be null.
  void Watch(TlsWatcher::OnChange on_change);
  // No call of `on_change` comes after it.
  void StopWatching();

 private:
  ServerSecurity() = default;

  void OnDenied(const std::vector<DeniedCalls>& denied);

  std::shared_ptr<Security> security_;
  std::unique_ptr<Tokens> tokens_;
  std::unique_ptr<AuditLog> audit_;
  // After the two that it uses.
  std::unique_ptr<AccessControl> access_;
  std::unique_ptr<PeriodicTask> token_task_;
};

}  // namespace cohort
