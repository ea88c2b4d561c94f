#include "common/security/identity.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/dns_label.h"
#include "common/limits.h"

namespace cohort {
namespace {

constexpr absl::string_view kScheme = "spiffe://";
constexpr absl::string_view kProduct = "cohort";
constexpr absl::string_view kAnyRank = "any";
constexpr size_t kDomainLengthMax = 255;

bool IsDomain(absl::string_view text) {
  return !text.empty() && text.size() <= kDomainLengthMax &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-_") ==
             absl::string_view::npos;
}

// Ranks and shards have one spelling: no sign, no leading zero.
std::optional<int32_t> ParseNumber(absl::string_view text) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0 ||
      number >= limits::kWorkersMax || absl::StrCat(number) != text) {
    return std::nullopt;
  }
  return number;
}

// Reads the path's part after the run: "worker" and "3", or "viewer".
bool ParseRole(const std::vector<absl::string_view>& parts,
               Identity& identity) {
  if (parts.size() == 1) {
    if (parts[0] == PeerRoleName(PeerRole::kViewer)) {
      identity.role = PeerRole::kViewer;
      return true;
    }
    identity.role = PeerRole::kOperator;
    return parts[0] == PeerRoleName(PeerRole::kOperator);
  }
  if (parts.size() != 2) return false;
  if (parts[0] == PeerRoleName(PeerRole::kWorker)) {
    identity.role = PeerRole::kWorker;
    if (parts[1] == kAnyRank) return true;
  } else if (parts[0] == PeerRoleName(PeerRole::kServer)) {
    identity.role = PeerRole::kServer;
  } else {
    return false;
  }
  identity.number = ParseNumber(parts[1]);
  return identity.number.has_value();
}

}  // namespace

absl::string_view PeerRoleName(PeerRole role) {
  constexpr absl::string_view kNames[] = {"server", "worker", "viewer",
                                          "operator"};
  return kNames[static_cast<size_t>(role)];
}

std::string Identity::Uri() const {
  std::string uri = absl::StrCat(kScheme, domain, "/", kProduct, "/", run, "/",
                                 PeerRoleName(role));
  if (number.has_value()) {
    absl::StrAppend(&uri, "/", *number);
  } else if (role == PeerRole::kWorker) {
    absl::StrAppend(&uri, "/", kAnyRank);
  }
  return uri;
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view uri) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("identity: got '", uri.substr(0, 2 * kDomainLengthMax),
                   "', want spiffe://DOMAIN/cohort/RUN/ and then server/SHARD, "
                   "worker/RANK, worker/any, viewer or operator"));
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kScheme)) return bad;
  std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (parts.size() < 4 || !IsDomain(parts[0]) || parts[1] != kProduct ||
      !CheckDnsLabel("run", parts[2]).ok()) {
    return bad;
  }
  Identity identity{.domain = std::string(parts[0].data(), parts[0].size()),
                    .run = std::string(parts[2].data(), parts[2].size())};
  parts.erase(parts.begin(), parts.begin() + 3);
  if (!ParseRole(parts, identity)) return bad;
  return identity;
}

}  // namespace cohort
