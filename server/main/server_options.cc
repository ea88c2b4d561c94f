#include "server/main/server_options.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/log/log.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "server/ops/ops_port.h"

namespace cohort {
namespace {

absl::Status CheckShards(const ServerOptions& options) {
  if (options.shard_addresses.empty()) return absl::OkStatus();
  std::set<std::string> seen;
  for (const std::string& address : options.shard_addresses) {
    COHORT_RETURN_IF_ERROR(CheckServerAddress("--shard_addresses", address));
    if (seen.insert(address).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--shard_addresses: got ", address,
                     " twice, want the address of each data shard once"));
  }
  if (options.files.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "--shard_addresses: got data shards, want --checkpoint_dir too: after "
        "the loss of a shard all go on from the newest checkpoint");
  }
  if (options.local == "shm" || options.local == "unix") {
    return absl::InvalidArgumentError(
        absl::StrCat("--local: got ", options.local,
                     ", want tcp or auto with --shard_addresses: workers reach "
                     "data shards over TCP only"));
  }
  return absl::OkStatus();
}

}  // namespace

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
