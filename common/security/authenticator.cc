#include "common/security/authenticator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {
namespace {

// Targets come from clients, before they are known.
constexpr size_t kTargetLengthMax = 300;

// The token of an authorization header; empty if it has none.
std::string TokenIn(absl::string_view authorization) {
  const size_t space = authorization.find(' ');
  if (space == absl::string_view::npos) return "";
  const absl::string_view scheme = authorization.substr(0, space);
  const absl::string_view rest = authorization.substr(space + 1);
  if (absl::EqualsIgnoreCase(scheme, "Bearer")) {
    return std::string(rest.data(), rest.size());
  }
  std::string pair;
  if (!absl::EqualsIgnoreCase(scheme, "Basic") ||
      !absl::Base64Unescape(rest, &pair)) {
    return "";
  }
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

// "a viewer or an operator".
std::string RolesText(absl::Span<const PeerRole> roles) {
  return absl::StrJoin(roles, " or ", [](std::string* out, PeerRole role) {
    absl::StrAppend(out, role == PeerRole::kOperator ? "an " : "a ",
                    PeerRoleName(role));
  });
}

}  // namespace

Caller CallerWith(const Identity& identity) {
  Caller caller{.role = identity.role, .name = identity.Uri()};
  if (identity.role == PeerRole::kWorker) caller.rank = identity.number;
  return caller;
}

absl::string_view RefusalName(Refusal refusal) {
  constexpr absl::string_view kNames[] = {"no_identity",     "unknown_token",
                                          "other_run",       "role",
                                          "bad_certificate", "rank"};
  return kNames[static_cast<size_t>(refusal)];
}

Authenticator::Authenticator(Identity own, const Tokens* tokens)
    : own_(std::move(own)), tokens_(tokens) {}

Authenticator::Result Authenticator::Identify(
    const Presented& presented) const {
  if (presented.identity.has_value()) {
    const Identity& seen = *presented.identity;
    const std::string name = seen.Uri();
    if (seen.domain != own_.domain || seen.run != own_.run) {
      return {.refusal = Refusal::kOtherRun,
              .presented = name,
              .text = absl::StrCat("got the certificate of ", name,
                                   ", want one of the run spiffe://",
                                   own_.domain, "/cohort/", own_.run)};
    }
    return {.caller = CallerWith(seen), .presented = name};
  }
  if (takes_tokens() && !presented.authorization.empty()) {
    const std::string name = tokens_->NameOf(TokenIn(presented.authorization));
    if (!name.empty()) {
      const std::string said = absl::StrCat("token ", name);
      return {.caller = Caller{.role = PeerRole::kViewer, .name = said},
              .presented = said};
    }
    return {.refusal = Refusal::kUnknownToken,
            .presented = "an unknown token",
            .text =
                "got an unknown token, want one whose hash is in the "
                "server's --viewer_tokens"};
  }
  if (!presented.certificate_problem.empty()) {
    const std::string seen =
        absl::StrCat("a certificate ", presented.certificate_problem);
    return {.refusal = Refusal::kBadCertificate,
            .presented = seen,
            .text = absl::StrCat("got ", seen, ", want a valid one of the run ",
                                 own_.run,
                                 "; cohortctl certs show prints a file's "
                                 "issuer and end")};
  }
  return {.refusal = Refusal::kNoIdentity,
          .presented = "no identity",
          .text = absl::StrCat("got no certificate of the run ", own_.run,
                               takes_tokens() ? " and no token" : "",
                               ", want --tls_cert and --tls_key",
                               takes_tokens() ? ", or a token" : "")};
}

Authenticator::Admission Authenticator::Admit(
    absl::string_view target, const Presented& presented,
    absl::Span<const PeerRole> roles) const {
  Result result = Identify(presented);
  if (!result.caller.has_value()) {
    return {.caller = result.refusal == Refusal::kOtherRun
                          ? absl::PermissionDeniedError(result.text)
                          : absl::UnauthenticatedError(result.text),
            .refusal = result.refusal,
            .presented = std::move(result.presented)};
  }
  if (std::find(roles.begin(), roles.end(), result.caller->role) !=
      roles.end()) {
    return {.caller = *std::move(result.caller),
            .presented = std::move(result.presented)};
  }
  return {.caller = absl::PermissionDeniedError(absl::StrCat(
              result.presented, " may not call ",
              target.substr(0, kTargetLengthMax),
              roles.empty() ? ", which no client may"
                            : absl::StrCat(", want a certificate of ",
                                           RolesText(roles)))),
          .refusal = Refusal::kRole,
          .presented = std::move(result.presented)};
}

absl::Status Authenticator::CheckPageReader(const Presented& presented) const {
  return Admit("this page", presented, kPageReaders).caller.status();
}

}  // namespace cohort
