#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ops/process_collector.h"
#include "server/core/settings/options.h"
#include "server/core/views.h"
#include "server/metrics/bucket_counts.h"
#include "server/metrics/run_stats.h"

namespace cohort {

// Properties of the model. All but the byte counts are fixed once it is
// registered.
struct ModelFigures {
  int64_t parameters = 0;
  int64_t weights_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t batch_norm_bytes = 0;
  struct Layer {
    std::string name;
    int64_t channels = 0;
  };
  std::vector<Layer> layers;
};

// Traffic of the server's streams.
struct ServiceFigures {
  int32_t sessions = 0;
  int64_t folds_waiting = 0;
  int64_t inflight_bytes = 0;
  int64_t inflight_bytes_max = 0;
  int64_t inflight_paused = 0;
  int64_t push_bytes_float32 = 0;
  int64_t push_bytes_bfloat16 = 0;
  int64_t pull_bytes_float32 = 0;
  int64_t pull_bytes_bfloat16 = 0;
  int64_t pulls = 0;
  int64_t pulls_refused = 0;
  // Messages of refused pushes: of an incarnation that is over, or invalid.
  int64_t pushes_fenced = 0;
  int64_t pushes_invalid = 0;
};

// One of the server processes that share the model.
struct ShardFigures {
  // 0 is the process that coordinates the run.
  int32_t shard = 0;
  // Empty for shard 0.
  std::string address;
  bool connected = true;
  // Since it is connected, or is not. Seconds since 1970; 0 for shard 0.
  double since = 0;
  // Why the connection was lost last; empty if it never was.
  std::string lost_because;
  int64_t losses = 0;
  // Rises with each start of the run; see DataShards.Attach.
  int64_t generation = 0;
  int32_t partitions = 0;
  int64_t weights_bytes = 0;
  // How long the newest commit took from the plan to the last fold of this
  // shard, which includes waiting for gradients. Absent before the first.
  std::optional<double> prepare_seconds;
  // Sum over all commits.
  double prepare_seconds_total = 0;
  // Time in which all other shards were ready and a commit waited for this one.
  double holdup_seconds_total = 0;
};

struct CheckpointFigures {
  CheckpointFigures();

  bool enabled = false;
  BucketCounts duration_seconds;
  int64_t size_bytes = 0;
  int64_t written = 0;
  int64_t failed_disk_full = 0;
  int64_t failed_io = 0;
  // Why the newest try failed, with its step; empty: it did not.
  std::string problem;
  // The newest safe checkpoint, from this start or the one it continues.
  std::optional<int64_t> version;
  // Seconds since 1970; absent if there is no checkpoint.
  std::optional<double> written_at;
  // Version of the model that this process exported last.
  std::optional<int64_t> model_version;
  int64_t restored = 0;
  int64_t damaged_skipped = 0;
  double restore_seconds = 0;
};

// Everything that /metrics, /status.json and the page show, as of one moment.
// They are written from the same object, so their numbers agree.
struct RunFigures {
  // Version and commit of the server.
  std::string build;
  // Seconds since 1970.
  double now = 0;
  absl::Duration uptime;
  std::string address;
  // Link to dashboards of the run; empty for none.
  std::string dashboards_url;
  // 0 while the run is paused.
  double samples_per_second = 0;
  // Time left for training; absent if it cannot be estimated.
  std::optional<double> seconds_left;
  StatusView status;
  PolicyView policy;
  // With `auto` resolved.
  PolicyOptions policy_options;
  int64_t checkpoint_every = 0;
  ModelFigures model;
  RunSums sums;
  ServiceFigures service;
  // By index; empty if one server has the whole model.
  std::vector<ShardFigures> shards;
  CheckpointFigures checkpoint;
  // Absent if the server writes no files.
  std::optional<int64_t> storage_free_bytes;
  int64_t memory_limit_bytes = 0;
  ProcessFigures process;
};

using SharedFigures = std::shared_ptr<const RunFigures>;

// "global" or "local"; `auto` must be resolved.
std::string NormalizationName(const PolicyOptions& policy);

// The staleness above which a push is dropped or damped; 0 under sync; absent
// if the policy sets none.
std::optional<int64_t> StalenessBound(const RunFigures& figures);

// Counts of messages and pushes by their result, in display order.
std::vector<std::pair<std::string, int64_t>> PushVerdicts(
    const RunFigures& figures);

}  // namespace cohort
