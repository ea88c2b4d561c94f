#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/security/authenticator.h"
#include "common/security/identity.h"
#include "common/security/tokens.h"
#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

constexpr char kToken[] = "a-long-and-random-token";

void CheckIdentity(absl::string_view text) {
  const absl::StatusOr<Identity> identity = ParseIdentity(text);
  RequireCode(identity.status(), {absl::StatusCode::kInvalidArgument});
  if (!identity.ok()) return;
  // Two texts of one identity would be two names for one holder.
  COHORT_CHECK(identity->Uri() == text, identity->Uri());
}

// An authorization header against a file with one token: only that token opens.
void CheckAuthorization(const std::string& header) {
  static const Tokens& tokens = *[] {
    const ScratchFolder folder;
    folder.Write("tokens", absl::StrCat("ana ", TokenHash(kToken), "\n"));
    return Tokens::Load(folder.File("tokens"))->release();
  }();
  const Authenticator authenticator({.domain = "example.org", .run = "demo"},
                                    &tokens);
  const Authenticator::Result result =
      authenticator.Identify({.authorization = header});
  const absl::Status reads =
      authenticator.CheckPageReader({.authorization = header});
  RequireCode(reads, {absl::StatusCode::kUnauthenticated});
  COHORT_CHECK(reads.ok() == result.caller.has_value(), "two answers");
  if (!result.caller.has_value()) {
    COHORT_CHECK(!absl::StrCat(result.text, result.presented).empty(),
                 "refused without a reason");
    return;
  }
  COHORT_CHECK(result.caller->role == PeerRole::kViewer, "more than a viewer");
  const size_t space = header.find(' ');
  const std::string rest = header.substr(space + 1);
  std::string pair;
  COHORT_CHECK(
      rest == kToken || (absl::Base64Unescape(rest, &pair) &&
                         absl::EndsWith(pair, absl::StrCat(":", kToken))),
      absl::StrCat("let in without the token: ", header));
}

void CheckTokens(absl::string_view text) {
  static const ScratchFolder& folder = *new ScratchFolder();
  folder.Write("tokens", text);
  const absl::StatusOr<std::unique_ptr<Tokens>> tokens =
      Tokens::Load(folder.File("tokens"));
  RequireCode(tokens.status(), {absl::StatusCode::kInvalidArgument});
  if (tokens.ok())
    COHORT_CHECK((*tokens)->NameOf("").empty(), "an empty token");
}

void RunIdentity(absl::string_view input) {
  Reader reader(input);
  const int32_t kind = reader.Below(3);
  const absl::string_view text = reader.Rest();
  if (kind == 0) return CheckIdentity(text);
  if (kind == 1) return CheckAuthorization(Text(text));
  CheckTokens(text);
}

std::vector<std::string> IdentitySeeds() {
  const auto uri = [](PeerRole role, std::optional<int32_t> number) {
    return absl::StrCat(std::string(1, '\0'), Identity{.domain = "example.org",
                                                       .run = "demo",
                                                       .role = role,
                                                       .number = number}
                                                  .Uri());
  };
  return {uri(PeerRole::kServer, 0),
          uri(PeerRole::kWorker, 12),
          uri(PeerRole::kWorker, std::nullopt),
          uri(PeerRole::kViewer, std::nullopt),
          uri(PeerRole::kOperator, std::nullopt),
          absl::StrCat("\x01", "Bearer ", kToken),
          absl::StrCat("\x01", "Basic YW5hOmEtbG9uZy1hbmQtcmFuZG9tLXRva2Vu"),
          absl::StrCat("\x02# viewers\nana ", TokenHash("x"), "\n\nbob ",
                       TokenHash("y"), "\n")};
}

}  // namespace

Target IdentityTarget() {
  return {.name = "identity",
          .run = RunIdentity,
          .seeds = IdentitySeeds,
          .input_bytes_max = 256};
}

}  // namespace cohort::fuzz
