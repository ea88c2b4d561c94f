#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/security/identity.h"
#include "common/security/tls_files.h"
#include "common/wire/shared_security.h"

namespace cohort {

// How a process secures its gRPC connections. Certificates and authorities are
// read again within seconds after their files change; connections that exist
// go on.
// Thread safety: safe.
class Security {
 public:
  // Plaintext if `files` are all empty.
  // Errors: those of ReadTlsFiles.
  static absl::StatusOr<std::shared_ptr<const Security>> Load(
      const TlsFiles& files);

  bool encrypted() const { return files_.encrypted(); }
  const TlsFiles& files() const { return files_; }
  // The files as they were when the process started.
  const TlsContent& content() const { return content_; }
  const std::optional<Identity>& identity() const { return content_.identity; }

  // For a client. The server's certificate must have the role `server`, of the
  // client's own trust domain and run if the client has a certificate.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel() const;
  // For a server. Without `require_certificate`, clients without one complete
  // the handshake; a certificate that is given must be valid in any case.
  std::shared_ptr<grpc::ServerCredentials> ForServer(
      bool require_certificate) const;

 private:
  Security(TlsFiles files, TlsContent content);

  const TlsFiles files_;
  const TlsContent content_;
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
