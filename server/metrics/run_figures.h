#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ops/process_collector.h"
#include "server/core/options.h"
#include "server/core/views.h"
#include "server/metrics/bucket_counts.h"
#include "server/metrics/run_tally.h"

namespace cohort {

// Of the model, fixed once it is registered, but for the bytes.
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

// What goes through the server's streams.
struct ServiceFigures {
  int32_t sessions = 0;
  int64_t folds_waiting = 0;
  int64_t inflight_bytes = 0;
  int64_t inflight_bytes_max = 0;
  int64_t inflight_paused = 0;
  int64_t push_bytes = 0;
  int64_t pull_bytes = 0;
  int64_t pulls = 0;
  int64_t pulls_refused = 0;
  // Messages of pushes that were refused: of a life that is over, or wrong.
  int64_t pushes_fenced = 0;
  int64_t pushes_invalid = 0;
};

struct CheckpointFigures {
  CheckpointFigures();

  bool enabled = false;
  BucketCounts duration_seconds;
  int64_t size_bytes = 0;
  int64_t written = 0;
  int64_t failed_disk_full = 0;
  int64_t failed_io = 0;
  // Of the newest that is safe, from this life or the one it continues.
  std::optional<int64_t> version;
  // Seconds since 1970; absent: there is none.
  std::optional<double> written_at;
  // Of the model that was exported last, by this process.
  std::optional<int64_t> model_version;
  int64_t restored = 0;
  int64_t damaged_skipped = 0;
  double restore_seconds = 0;
};

// Everything that /metrics, /status.json and the page say, of one moment: they
// are written from the same object, so their numbers agree.
struct RunFigures {
  std::string build_version;
  std::string build_commit;
  // Seconds since 1970.
  double now = 0;
  absl::Duration uptime;
  std::string address;
  // 0 while the run is paused.
  double samples_per_second = 0;
  // Of training; absent while nobody can tell.
  std::optional<double> seconds_left;
  StatusView status;
  PolicyView policy;
  // With `auto` resolved.
  PolicyOptions policy_options;
  int64_t checkpoint_every = 0;
  ModelFigures model;
  TallySums sums;
  ServiceFigures service;
  CheckpointFigures checkpoint;
  // Absent: nothing is written.
  std::optional<int64_t> storage_free_bytes;
  int64_t memory_limit_bytes = 0;
  ProcessFigures process;
};

using SharedFigures = std::shared_ptr<const RunFigures>;

// "global" or "local"; `auto` must be resolved.
std::string NormalizationName(const PolicyOptions& policy);

// Staleness above which a push is dropped or damped; 0 under sync; absent where
// the policy sets none.
std::optional<int64_t> StalenessBound(const RunFigures& figures);

// Messages and pushes by what became of them, in the order that they are
// shown.
std::vector<std::pair<std::string, int64_t>> PushVerdicts(
    const RunFigures& figures);

}  // namespace cohort
