#include <vector>

#include "common/dns_label.h"
#include "common/listen_address.h"
#include "common/name_pattern.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

// By definition, without a single clever step: row[j] tells whether what was
// read of the pattern matches the first j characters of the name.
bool MatchesByDefinition(absl::string_view pattern, absl::string_view name) {
  std::vector<bool> row(name.size() + 1, false);
  row[0] = true;
  for (const char c : pattern) {
    std::vector<bool> next(name.size() + 1, false);
    for (size_t j = 0; j <= name.size(); ++j) {
      if (c == '*') {
        next[j] = row[j] || (j > 0 && next[j - 1]);
      } else if (j > 0) {
        next[j] = row[j - 1] && (c == '?' || c == name[j - 1]);
      }
    }
    row = std::move(next);
  }
  return row[name.size()];
}

void CheckAddress(absl::string_view text) {
  const absl::StatusOr<ListenAddress> address =
      ParseListenAddress("--listen", text);
  RequireCode(address.status(), {absl::StatusCode::kInvalidArgument});
  RequireCode(CheckServerAddress("--server", text),
              {absl::StatusCode::kInvalidArgument});
  if (!address.ok()) return;
  COHORT_CHECK(address->port >= 0 && address->port <= 65535, "no port");
  const absl::StatusOr<ListenAddress> again =
      ParseListenAddress("--listen", address->ToString());
  COHORT_CHECK(again.ok(), again.status().ToString());
  COHORT_CHECK(again->host == address->host && again->port == address->port &&
                   again->socket == address->socket,
               "an address changes when it is read again");
  COHORT_CHECK(!UrlHere(address->ToString()).empty(), "no URL");
  RequireCode(CheckExposure("--listen", *address, false, "read"),
              {absl::StatusCode::kInvalidArgument});
}

void RunName(absl::string_view input) {
  Reader reader(input);
  const absl::string_view pattern = reader.Until('\n');
  const absl::string_view name = reader.Until('\n');
  COHORT_CHECK(
      MatchesPattern(pattern, name) == MatchesByDefinition(pattern, name),
      "a pattern does not match what it describes");
  COHORT_CHECK(MatchesPattern("*", name), "* matches everything");
  const ModelLayout layout = {
      .parameters = {{.name = Text(name)}, {.name = "conv.weight"}}};
  RequireCode(CheckPatternsMatch("freeze", {Text(pattern)}, layout),
              {absl::StatusCode::kFailedPrecondition});
  CheckAddress(pattern);
  RequireCode(CheckDnsLabel("--run_name", name),
              {absl::StatusCode::kInvalidArgument});
}

std::vector<std::string> NameSeeds() {
  return {"layer1.*.weight\nlayer1.0.conv1.weight",
          "*.bn?.b*s\nnet.bn1.bias",
          "**a*b?*\nxxaybz",
          "127.0.0.1:0\nrun-1",
          "[::1]:7070\nlocalhost",
          "unix:/tmp/socket\n-a",
          "unix-abstract:cohort\nunix:///tmp/a b",
          "dns:///server.example:7070\na.b"};
}

}  // namespace

Target NameTarget() {
  return {.name = "name",
          .run = RunName,
          .seeds = NameSeeds,
          .input_bytes_max = 160};
}

}  // namespace cohort::fuzz
