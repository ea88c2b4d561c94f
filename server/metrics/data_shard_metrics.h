#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/ops/metrics_page.h"
#include "server/metrics/bucket_counts.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// Everything that /metrics of a data shard shows.
struct DataShardFigures {
  DataShardFigures();

  // Identity of the run that shard 0 attached last; empty if none did.
  std::string run_id;
  std::string run_name;
  int32_t shard = 0;
  // Shard 0 is connected.
  bool connected = false;
  // The generation of shard 0's last connection.
  int64_t generation = 0;
  int64_t connections = 0;
  // Absent until shard 0 has sent the model.
  std::optional<int64_t> version;
  int64_t partitions = 0;
  int64_t weights_bytes = 0;
  int64_t optimizer_bytes = 0;
  // Sessions and refusals stay 0: shard 0 has them.
  ServiceFigures service;
  BucketCounts fold_seconds;
  int64_t memory_limit_bytes = 0;
};

// The figures as metrics. Numbers that every server process has are called as
// in run_metrics.h, so that sums over the processes of a run are those of the
// run.
MetricFamilies DataShardFamilies(const DataShardFigures& figures);

}  // namespace cohort
