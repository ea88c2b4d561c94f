#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/core/settings/options.h"
#include "server/main/server_security.h"
#include "server/metrics/run_stats.h"
#include "server/records/run_files.h"

namespace cohort {

class HandshakeLog;
class ShardStats;
class TraceFile;

// What a server leaves to the next one of this process, which continues its run
// after the loss of a data shard.
struct Handover {
  // Null: it is the first server.
  std::shared_ptr<ShardStats> shards;
  // Null without --trace.
  std::shared_ptr<TraceFile> trace;
  std::deque<RunEvent> events;
  // The number of policies in the run's history, the first one included.
  size_t policies = 0;
  // The reason, if an operator has asked for the run's end.
  std::optional<std::string> drain;
};

struct ServerOptions {
  // host:port or a Unix socket; port 0 takes a free one.
  std::string listen = "127.0.0.1:7070";
  // The same, of a separate port for Admin; empty: `listen` serves it too.
  std::string admin_listen;
  // Allows plaintext on an address that other machines can reach.
  bool insecure = false;
  ServerSecurityOptions security;
  // Counts failed TLS handshakes, for metrics; must outlive the server. May be
  // null.
  const HandshakeLog* handshakes = nullptr;
  // 0: a default, by the number of workers.
  int32_t connections_per_address = 0;
  // Addresses of the data shards from shard 1 on; empty: this is the only
  // server.
  std::vector<std::string> shard_addresses;
  // Asked every tenth of a second while the start waits for data shards: true
  // ends it with Cancelled. May be null.
  std::function<bool()> stop_requested;
  Handover handover;
  // auto, shm, unix or tcp; see the flag.
  std::string local = "auto";
  // Folder of the sockets for workers of this host; empty: they have no path.
  std::string local_dir;
  // run_id and first_incarnation are chosen by the server.
  CoordinatorOptions coordinator;
  // Names of the settings in `coordinator` that were given explicitly. A
  // resumed run keeps its own values of the others.
  std::set<std::string> given;
  int32_t fold_threads = 2;
  int64_t inflight_bytes_max = int64_t{4} << 30;
  // The limit on the weights of a model.
  int64_t model_bytes_max = int64_t{16} << 30;
  RunFilesOptions files;
  // Directory for TensorBoard's event files; none if empty.
  std::string tensorboard_dir;
  // File for the timeline of this process; none if empty.
  std::string trace;
  // File for the address once the server listens; none if empty.
  std::string address_file;
  // host:port of the live page and the metrics; none if empty.
  std::string ops_listen;
  // Shown on the page; http or https. Empty for none.
  std::string dashboards_url;
  // File for the operations port's address; none if empty.
  std::string ops_address_file;
  // Silence after which a data shard is lost.
  absl::Duration shard_lease = absl::Seconds(10);
  // Set by StartServer in place of shard_addresses, if the run that it
  // continues is over.
  std::vector<std::string> ended_shard_addresses;
  // If false, the server stays up after the run ends, so that it can be
  // inspected, until a stop is requested.
  bool exit_when_done = true;
  // If true, progress is one line that is rewritten.
  bool terminal = false;
  // How long a finished run waits for its workers to leave.
  absl::Duration leave_grace = absl::Seconds(5);
};

// At most half of the memory that this process may use, because weights,
// optimizer and versions need some as well. Logs if that is less than
// `inflight_bytes_max`.
int64_t WithinMemory(int64_t inflight_bytes_max);

// The flags that have an effect on a data shard.
absl::Span<const absl::string_view> DataShardFlags();

// Errors: InvalidArgument naming the flag, the value seen and those wanted.
absl::Status Validate(const ServerOptions& options);

// The addresses of --shard_addresses, in order. A range stands for several, so
// that a setting can be one number: "shard-[1-3]:7070" is shard-1:7070,
// shard-2:7070 and shard-3:7070. Empty items are left out.
// Errors: InvalidArgument: a range that falls, or more shards than 1024.
absl::StatusOr<std::vector<std::string>> ParseShardAddresses(
    absl::string_view text);

}  // namespace cohort
