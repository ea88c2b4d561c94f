#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/security/checked_files.h"
#include "common/security/identity.h"
#include "common/security/tls_files.h"
#include "common/security/tls_watcher.h"
#include "common/wire/shared_security.h"

namespace cohort {

// How a process secures its gRPC connections. Certificates and authorities are
// read again within seconds after their files change; connections that exist
// go on.
// Thread safety: safe.
class Security {
 public:
  // Plaintext if `files` are all empty. `on_message` receives new content and
  // faults, on a separate thread; it may be null.
  // Errors: those of ReadTlsFiles, and Unavailable.
  static absl::StatusOr<std::shared_ptr<Security>> Load(
      const TlsFiles& files, TlsWatcher::OnMessage on_message = nullptr);

  bool encrypted() const { return files_ != nullptr; }
  // The newest valid content of the files.
  TlsContent content() const { return watcher_.content(); }
  // When the certificate in use expires; InfiniteFuture without one.
  absl::Time not_after() const { return watcher_.not_after(); }
  const std::optional<Identity>& identity() const { return identity_; }

  // `on_change` gets new content from now on, on a separate thread.
  void Notify(TlsWatcher::OnChange on_change) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the files no more. No call of `on_change` comes after it.
  void StopWatching() { watcher_.Stop(); }

  // For a client. The server's certificate must have the role `server`, of the
  // client's own trust domain and run if the client has a certificate.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel() const;
  // For a server. Without `require_certificate`, clients without one complete
  // the handshake; a certificate that is given must be valid in any case.
  std::shared_ptr<grpc::ServerCredentials> ForServer(
      bool require_certificate) const;

 private:
  using Provider = grpc::experimental::CertificateProviderInterface;

  // `checked` is null for plaintext.
  Security(const TlsFiles& files, const TlsContent& content,
           std::unique_ptr<CheckedFiles> checked,
           const TlsWatcher::OnMessage& on_message);

  absl::Status Take(const TlsContent& content) ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const std::optional<Identity> identity_;
  // gRPC reads these in place of the files, because it checks nothing.
  const std::unique_ptr<CheckedFiles> files_;
  const std::shared_ptr<Provider> provider_;

  Mutex mu_;
  TlsWatcher::OnChange on_change_ ABSL_GUARDED_BY(mu_);

  // Last: its thread uses everything above.
  TlsWatcher watcher_;
};

// The reason if `message` is gRPC's report of a TLS handshake that failed, in
// words that say what to do; nullopt otherwise.
std::optional<std::string> HandshakeFailure(absl::string_view message);

// Checks that `seen`, a server's certificate, is one of the run `own` belongs
// to; any run's if `own` is absent.
// Errors: Unauthenticated with the names seen and wanted.
absl::Status CheckServer(const std::vector<std::string>& seen,
                         const std::optional<Identity>& own);

}  // namespace cohort
