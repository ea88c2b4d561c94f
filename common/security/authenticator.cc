#include "common/security/authenticator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

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

}  // namespace

Caller CallerWith(const Identity& identity) {
  Caller caller{.role = identity.role, .name = identity.Uri()};
  if (identity.role == PeerRole::kWorker) caller.rank = identity.number;
  return caller;
}

absl::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNoIdentity:
      return "no_identity";
    case Refusal::kUnknownToken:
      return "unknown_token";
    case Refusal::kOtherRun:
      return "other_run";
    case Refusal::kRole:
      return "role";
  }
  return "unknown";
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
  return {.refusal = Refusal::kNoIdentity,
          .presented = "no identity",
          .text = absl::StrCat("got no certificate of the run ", own_.run,
                               takes_tokens() ? " and no token" : "",
                               ", want --tls_cert and --tls_key",
                               takes_tokens() ? ", or a token" : "")};
}

absl::Status Authenticator::CheckPageReader(const Presented& presented) const {
  const Result result = Identify(presented);
  if (!result.caller.has_value()) {
    return result.refusal == Refusal::kOtherRun
               ? absl::PermissionDeniedError(result.text)
               : absl::UnauthenticatedError(result.text);
  }
  if (std::find(std::begin(kPageReaders), std::end(kPageReaders),
                result.caller->role) != std::end(kPageReaders)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(result.presented,
                   " may not read this page, want a certificate of a viewer "
                   "or operator"));
}

}  // namespace cohort
