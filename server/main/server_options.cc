#include "server/main/server_options.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/listen_address.h"
#include "common/log/log.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "server/ops/ops_port.h"

namespace cohort {
namespace {

constexpr int32_t kDataShardsMax = 1024;

// A range of numbers in an address, as in "shard-[1-3]:7070".
struct NumberRange {
  absl::string_view before;
  absl::string_view after;
  int32_t first = 0;
  int32_t last = 0;
};

// Not set without one. An address of IPv6 has brackets too, but no hyphen.
std::optional<NumberRange> FindRange(absl::string_view address) {
  const size_t open = address.find('[');
  const size_t close = address.find(']', open);
  if (open == address.npos || close == address.npos) return std::nullopt;
  NumberRange range{.before = address.substr(0, open),
                    .after = address.substr(close + 1)};
  const std::vector<absl::string_view> ends =
      absl::StrSplit(address.substr(open + 1, close - open - 1), '-');
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &range.first) ||
      !absl::SimpleAtoi(ends[1], &range.last)) {
    return std::nullopt;
  }
  return range;
}

absl::Status CheckShards(const ServerOptions& options) {
  if (options.shard_addresses.empty()) return absl::OkStatus();
  std::set<std::string> seen;
  for (const std::string& address : options.shard_addresses) {
    COHORT_RETURN_IF_ERROR(CheckServerAddress("--shard_addresses", address));
    if (absl::EndsWith(address, ":0")) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shard_addresses: got ", address,
                       ", want the port that the data shard listens on"));
    }
    if (seen.insert(address).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--shard_addresses: got ", address,
                     " twice, want the address of each data shard once"));
  }
  if (options.files.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "--shard_addresses: got data shards, want --checkpoint_dir too: after "
        "the loss of a shard all continue from the newest checkpoint");
  }
  if (options.local == "shm") {
    return absl::InvalidArgumentError(
        "--local: got shm, want tcp or auto with --shard_addresses: workers "
        "reach data shards over TCP only");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseShardAddresses(
    absl::string_view text) {
  std::vector<std::string> addresses;
  for (const absl::string_view part :
       absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const absl::string_view item = absl::StripAsciiWhitespace(part);
    const std::optional<NumberRange> range = FindRange(item);
    const int32_t first = range.has_value() ? range->first : 0;
    const int32_t last = range.has_value() ? range->last : 0;
    if (last < first) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shard_addresses: got ", item,
                       ", want a range that rises, such as shard-[1-3]:7070"));
    }
    if (int64_t{last} - first >=
        kDataShardsMax - static_cast<int64_t>(addresses.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shard_addresses: got more than ", kDataShardsMax,
                       " data shards, want fewer"));
    }
    for (int32_t i = first; i <= last; ++i) {
      addresses.push_back(range.has_value()
                              ? absl::StrCat(range->before, i, range->after)
                              : std::string(item));
    }
  }
  if (addresses.empty() && !text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shard_addresses: got '", text,
                     "' without an address, want one or an empty list"));
  }
  return addresses;
}

absl::Span<const absl::string_view> DataShardFlags() {
  static constexpr absl::string_view kFlags[] = {"data_shard",
                                                 "workers",
                                                 "listen",
                                                 "address_file",
                                                 "ops_listen",
                                                 "ops_address_file",
                                                 "insecure",
                                                 "connections_per_address",
                                                 "tls_cert",
                                                 "tls_key",
                                                 "tls_ca",
                                                 "viewer_tokens",
                                                 "audit_log",
                                                 "trace",
                                                 "log_level",
                                                 "exit_when_done",
                                                 "stopped_exit_code",
                                                 "fold_threads",
                                                 "inflight_mib"};
  return kFlags;
}

int64_t WithinMemory(int64_t inflight_bytes_max) {
  constexpr int64_t kMib = 1 << 20;
  const int64_t limit = MemoryLimitBytes();
  if (limit <= 0 || inflight_bytes_max <= limit / 2) return inflight_bytes_max;
  Log(LogLevel::kInfo,
      absl::StrCat("--inflight_mib: got ", inflight_bytes_max / kMib,
                   ", more than half of the ", limit / kMib,
                   " MiB of memory that this process may use; using ",
                   limit / 2 / kMib, " instead"));
  return limit / 2;
}

absl::Status Validate(const ServerOptions& options) {
  COHORT_ASSIGN_OR_RETURN(const ListenAddress address,
                          ParseListenAddress("--listen", options.listen));
  COHORT_RETURN_IF_ERROR(Validate(options.security));
  const bool unprotected_allowed =
      options.insecure || options.security.tls.encrypted();
  COHORT_RETURN_IF_ERROR(CheckExposure("--listen", address, unprotected_allowed,
                                       "train, read and stop this run"));
  if (!options.admin_listen.empty()) {
    COHORT_ASSIGN_OR_RETURN(
        const ListenAddress admin,
        ParseListenAddress("--admin_listen", options.admin_listen));
    COHORT_RETURN_IF_ERROR(CheckExposure("--admin_listen", admin,
                                         unprotected_allowed,
                                         "read, change and stop this run"));
  }
  // A browser would run the script of a javascript: link.
  if (!options.dashboards_url.empty() &&
      !absl::StartsWith(options.dashboards_url, "http://") &&
      !absl::StartsWith(options.dashboards_url, "https://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dashboards_url: got '", options.dashboards_url,
                     "', want a link that begins with http:// or https://"));
  }
  if (!options.ops_listen.empty()) {
    COHORT_RETURN_IF_ERROR(
        CheckOpsListen(options.ops_listen, unprotected_allowed));
  } else if (!options.ops_address_file.empty()) {
    return absl::InvalidArgumentError(
        "--ops_address_file: got a file, want --ops_listen too");
  }
  if (options.coordinator.checkpoint_every > 0 &&
      options.files.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--checkpoint_every: got ", options.coordinator.checkpoint_every,
        ", want --checkpoint_dir too, or 0"));
  }
  COHORT_RETURN_IF_ERROR(CheckShards(options));
  return Validate(options.coordinator);
}

}  // namespace cohort
