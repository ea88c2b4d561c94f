#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/security/tls_files.h"

namespace cohort {

// Why a server ends each connection of a client before it has said anything.
// gRPC's servers give no reason, so the client finds out by itself.
enum class ClosedBecause {
  // Nothing was found: no server is there, or it serves this client now.
  kUnknown,
  // The client speaks plaintext, the server TLS.
  kServerSpeaksTls,
  // The client has no certificate.
  kNoCertificate,
  // The server does not accept the client's certificate.
  kOwnCertificate,
};

// Makes one connection to the gRPC server at `address` (host:port), with the
// client's own files, and looks what becomes of it. Blocks for `timeout` at
// most; so long only if the server is silent.
// Thread safety: safe.
ClosedBecause WhyClosed(const std::string& address, const TlsFiles& tls,
                        absl::Duration timeout);

// The cause and what to do, in one sentence; empty for kUnknown.
absl::string_view Text(ClosedBecause cause);

// Whether `error`, of a connection over gRPC or HTTP, is that of a server that
// ended it without an answer.
bool IsClosedEarly(absl::string_view error);

}  // namespace cohort
