#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/security/identity.h"
#include "common/security/tokens.h"

namespace cohort {

// A client whose certificate or token was checked.
struct Caller {
  PeerRole role = PeerRole::kViewer;
  // The only rank that it may act for; absent: any.
  std::optional<int32_t> rank;
  // The identity as a URI, or "token NAME"; for logs and records.
  std::string name;
};

// The caller that a certificate of this run identifies.
Caller CallerWith(const Identity& identity);

// The reason why a client was not accepted, for metrics.
enum class Refusal {
  // Neither a certificate with an identity nor a token.
  kNoIdentity,
  kUnknownToken,
  // A certificate of another run or trust domain.
  kOtherRun,
  // The role does not allow the call.
  kRole,
  // A certificate that has expired, or that no authority of this side issued.
  // Only an operations port gets so far; with gRPC the handshake fails.
  kBadCertificate,
  // A message names another rank than the certificate.
  kRank,
};
inline constexpr Refusal kRefusals[] = {
    Refusal::kNoIdentity, Refusal::kUnknownToken,   Refusal::kOtherRun,
    Refusal::kRole,       Refusal::kBadCertificate, Refusal::kRank};
// "no_identity", "unknown_token", "other_run", "role", "bad_certificate",
// "rank".
absl::string_view RefusalName(Refusal refusal);

// Tells what a client presented.
struct Presented {
  // From a verified certificate; absent without one, or without an identity.
  std::optional<Identity> identity;
  // The fault of the certificate, if the client sent one that was not
  // accepted: "that has expired".
  std::string certificate_problem;
  // The header or metadata entry `authorization`: "Bearer TOKEN", or over HTTP
  // also "Basic BASE64" with the token as password. Empty without one.
  std::string authorization;
};

// The roles that may read the pages of an operations port.
inline constexpr PeerRole kPageReaders[] = {PeerRole::kViewer,
                                            PeerRole::kOperator};

// Identifies clients of one run.
// Thread safety: safe.
class Authenticator {
 public:
  struct Result {
    // Absent if refused.
    std::optional<Caller> caller;
    Refusal refusal = Refusal::kNoIdentity;
    // The identity or the kind of credential, for people; never a token.
    std::string presented;
    // The error for the client, with the remedy.
    std::string text;
  };

  // `own` is this process's identity. `tokens` must outlive the object; null:
  // none are taken.
  Authenticator(Identity own, const Tokens* tokens);

  bool takes_tokens() const { return tokens_ != nullptr && tokens_->any(); }

  // A certificate comes before a token.
  Result Identify(const Presented& presented) const;

  struct Admission {
    // Errors: Unauthenticated: no identity, or an unknown token;
    //   PermissionDenied: another run, or a role that may not.
    absl::StatusOr<Caller> caller;
    // If refused.
    Refusal refusal = Refusal::kNoIdentity;
    std::string presented;
  };
  // Whether a client with one of `roles` may call a method or read a page,
  // `target`.
  Admission Admit(absl::string_view target, const Presented& presented,
                  absl::Span<const PeerRole> roles) const;
  // Whether a client may read the pages of an operations port.
  absl::Status CheckPageReader(const Presented& presented) const;

 private:
  const Identity own_;
  const Tokens* const tokens_;
};

}  // namespace cohort
