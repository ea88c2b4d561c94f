#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
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
};
inline constexpr Refusal kRefusals[] = {Refusal::kNoIdentity,
                                        Refusal::kUnknownToken,
                                        Refusal::kOtherRun, Refusal::kRole};
// "no_identity", "unknown_token", "other_run", "role".
absl::string_view RefusalName(Refusal refusal);

// Tells what a client presented.
struct Presented {
  // From a verified certificate; absent without one, or without an identity.
  std::optional<Identity> identity;
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

  // Errors: Unauthenticated, or PermissionDenied if the client may not read the
  //   pages of an operations port.
  absl::Status CheckPageReader(const Presented& presented) const;

 private:
  const Identity own_;
  const Tokens* const tokens_;
};

}  // namespace cohort
