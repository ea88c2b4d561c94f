#include "server/metrics/data_shard_metrics.h"

#include "server/metrics/server_families.h"

namespace cohort {

DataShardFigures::DataShardFigures()
    : fold_seconds(DoublingBounds(0.0001, 65.6)) {}

MetricFamilies DataShardFamilies(const DataShardFigures& figures) {
  FamiliesPage page;
  // Empty, and so left out, until there is a run.
  page.Gauge("cohort_data_shard_info",
             "Constant 1, labelled with the run and the number of the shard.");
  if (!figures.run_id.empty()) {
    page.Value(1, {{"run", figures.run_id},
                   {"run_name", figures.run_name},
                   {"shard", std::to_string(figures.shard)}});
  }
  page.Gauge("cohort_data_shard_connected",
             "1 while shard 0 of a run is connected, 0 while none is.")
      .Value(figures.connected ? 1 : 0);
  page.Counter("cohort_data_shard_connections_total",
               "Connections of shard 0: one for each start of a run.")
      .Value(figures.connections);
  page.Gauge("cohort_data_shard_generation",
             "Generation of the newest connection of shard 0.")
      .Value(figures.generation);
  page.Gauge("cohort_data_shard_version",
             "Newest version of the weights that this shard holds.")
      .Value(figures.version);
  page.Gauge("cohort_data_shard_partitions", "Partitions of this shard.")
      .Value(figures.partitions);
  page.Gauge("cohort_state_bytes", "Memory of one version, by kind.")
      .Value(figures.weights_bytes, {{"kind", "weights"}})
      .Value(figures.optimizer_bytes, {{"kind", "optimizer"}});
  AddTransfers(figures.service, page);
  AddFolds(figures.fold_seconds, figures.service, page);
  AddMemoryLimit(figures.memory_limit_bytes, page);
  return page.Take();
}

}  // namespace cohort
