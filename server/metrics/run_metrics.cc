#include "server/metrics/run_metrics.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "server/metrics/server_families.h"

namespace cohort {
namespace {

using Page = FamiliesPage;

void AddRun(const RunFigures& f, Page& page) {
  const std::string& run = f.status.run_id;
  const PolicyOptions& policy = f.policy_options;
  const auto setting = f.policy.settings.find("staleness");
  page.Gauge("cohort_run_active",
             "1 while training can continue, 0 once the run has ended.")
      .Value(f.status.ended ? 0 : 1, {{"run", run}});
  page.Gauge("cohort_run_info",
             "Constant 1, labelled with the run and its name.")
      .Value(1, {{"run", run}, {"run_name", f.status.run_name}});
  page.Gauge("cohort_policy_info",
             "Constant 1, labelled with the policy in force.")
      .Value(1, {{"run", run},
                 {"policy", std::string(AggregationName(policy.aggregation))},
                 {"normalization", NormalizationName(policy)},
                 {"bn_statistics", StatisticsNames(policy.statistics)},
                 {"staleness_rule",
                  setting == f.policy.settings.end() ? "" : setting->second}});
  page.Gauge("cohort_model_version", "Newest version of the weights.")
      .Value(f.status.version.value(), {{"run", run}});
  page.Counter("cohort_policy_changes_total",
               "Changes of settings that took effect.")
      .Value(f.status.counts.policy_changes);
  page.Gauge("cohort_parameters", "Elements of all parameters.")
      .Value(f.model.parameters);
  page.Gauge("cohort_state_bytes", "Memory of one version, by kind.")
      .Value(f.model.weights_bytes, {{"kind", "weights"}})
      .Value(f.model.optimizer_bytes, {{"kind", "optimizer"}})
      .Value(f.model.batch_norm_bytes, {{"kind", "bn"}});
  page.Counter("cohort_samples_total", "Images committed by this process.")
      .Value(f.sums.samples);
  page.Gauge("cohort_samples_seen",
             "Images of the run so far, including those before a restart.")
      .Value(f.status.samples);
  page.Gauge("cohort_local_steps",
             "Local steps of all versions; 0 without --local_steps.")
      .Value(f.status.local_steps);
  page.Gauge("cohort_samples_planned", "Images of the whole run.")
      .Value(f.status.samples_total);
  page.Gauge("cohort_epoch",
             "Epoch that new assignments come from, counted from 0.")
      .Value(f.status.data_epoch);
  page.Gauge("cohort_epochs_planned", "Epochs of the whole run.")
      .Value(f.status.epochs);
}

void AddMeasures(const StatusView& status, Page& page) {
  Page& gauge = page.Gauge(
      "cohort_train_measure",
      "The training program's own measures at the newest commit that "
      "had any: the mean over the workers.");
  for (const auto& [name, value] : status.measures) {
    gauge.Value(value, {{"measure", name}});
  }
}

void AddLearning(const RunFigures& f, Page& page) {
  const RunSums& sums = f.sums;
  const auto test = [&sums](auto member) {
    return sums.test.has_value() ? std::make_optional((*sums.test).*member)
                                 : std::nullopt;
  };
  page.Gauge("cohort_loss",
             "Mean loss of the newest commit or the newest test.")
      .Value(sums.train_loss, {{"split", "train"}})
      .Value(test(&EvaluationPoint::loss), {{"split", "test"}});
  AddMeasures(f.status, page);
  page.Gauge("cohort_accuracy_ratio",
             "Share of labels predicted correctly in the newest commit or the "
             "newest test.")
      .Value(sums.train_accuracy, {{"split", "train"}})
      .Value(test(&EvaluationPoint::accuracy), {{"split", "test"}});
  page.Gauge("cohort_mean_iou_ratio",
             "Mean intersection over union of the newest test.")
      .Value(sums.test.has_value() ? sums.test->mean_iou : std::nullopt,
             {{"split", "test"}});
  page.Gauge("cohort_learning_rate", "Current learning rate of the schedule.")
      .Value(f.status.learning_rate);
  page.Gauge("cohort_gradient_norm",
             "Norm of the mean gradient of the newest commit, before clipping.")
      .Value(sums.gradient_norm);
}

void AddMembers(const RunFigures& f, Page& page) {
  const StatusView& status = f.status;
  page.Gauge("cohort_workers_expected",
             "Workers that training needs: all ranks, or MIN of an elastic "
             "cohort.")
      .Value(status.workers_needed());
  page.Gauge("cohort_step_samples",
             "Samples of a step of the present workers, or of one push of each "
             "if pushes are applied one by one.")
      .Value(status.step_samples);
  page.Gauge("cohort_workers_max", "Number of ranks.")
      .Value(status.workers_expected);
  page.Gauge("cohort_workers_registered", "Ranks held by a live worker.")
      .Value(status.workers_live);
  const auto count = [&](const char* label, const auto& names, auto name_of) {
    for (absl::string_view name : names) {
      page.Value(std::ranges::count(status.workers, name, name_of),
                 {{label, std::string(name)}});
    }
  };
  page.Gauge("cohort_workers", "Ranks by the activity of their worker.");
  count("state", kActivityNames,
        [](const StatusView::Worker& worker) { return worker.activity; });
  page.Gauge("cohort_workers_by_transport",
             "Workers that have pushed, by how their gradients travel.");
  count("transport", kTransportNames, [](const StatusView::Worker& worker) {
    return absl::string_view(worker.report.transport);
  });
  page.Gauge("cohort_sessions", "Open session streams.")
      .Value(f.service.sessions);
  page.Counter("cohort_worker_evictions_total",
               "Ranks that became vacant, by reason.");
  for (VacancyReason reason : kVacancyReasons) {
    page.Value(status.vacancies.at(reason),
               {{"reason", std::string(VacancyReasonName(reason))}});
  }
  page.Gauge(
          "cohort_waiting_seconds",
          "How long identified workers have held up the run; 0 if none does.")
      .Value(absl::ToDoubleSeconds(status.waiting));
}

// The only metrics with a worker label; they show which worker is the
// straggler.
void AddWorkers(const RunFigures& f, Page& page) {
  const auto each = [&f, &page](auto value) {
    for (const StatusView::Worker& worker : f.status.workers) {
      if (worker.rank.value() >= kRankSeriesMax) continue;
      page.Value(value(worker),
                 {{"worker", std::to_string(worker.rank.value())}});
    }
  };
  const auto last = [&each](const std::map<Rank, int64_t>& counts) {
    each([&counts](const StatusView::Worker& worker) {
      const auto found = counts.find(worker.rank);
      return found == counts.end() ? 0 : found->second;
    });
  };
  page.Gauge(
      "cohort_worker_last_seen_timestamp_seconds",
      "Time of the last message from the worker, in seconds since 1970.");
  each([&f](const StatusView::Worker& worker) {
    return worker.incarnation == Incarnation()
               ? std::nullopt
               : std::optional(f.now - absl::ToDoubleSeconds(worker.silent));
  });
  page.Gauge(
      "cohort_worker_lag_versions",
      "Versions between the last one that the worker saw and the newest.");
  each([](const StatusView::Worker& worker) { return worker.lag_versions; });
  page.Counter("cohort_barrier_last_arrival_total",
               "Steps in which this worker was the last to finish.");
  last(f.sums.last_arrivals);
  page.Counter("cohort_bn_last_arrival_total",
               "Rendezvous in which this worker was the last to arrive.");
  last(f.sums.rendezvous_last_arrivals);
}

BucketCounts StalenessOf(const StalenessCounts& counts) {
  std::vector<double> bounds = {0};
  for (double bound : DoublingBounds(1, 256)) bounds.push_back(bound);
  BucketCounts staleness(std::move(bounds));
  for (const auto& [versions, pushes] : counts) {
    staleness.Add(static_cast<double>(versions), pushes);
  }
  return staleness;
}

void AddPushes(const RunFigures& f, Page& page) {
  page.Counter("cohort_pushes_total",
               "Pushes by verdict; duplicate, replay_mismatch, fenced and "
               "invalid count messages.");
  for (const auto& [name, count] : PushVerdicts(f)) {
    page.Value(count, {{"result", name}});
  }
  AddTransfers(f.service, page);
  page.Counter("cohort_pulls_total", "Pulls of a whole version.")
      .Value(f.service.pulls, {{"result", "ok"}})
      .Value(f.service.pulls_refused, {{"result", "refused"}});
  page.Histogram(
          "cohort_push_staleness_versions",
          "Staleness of pushes that are decided one by one, in versions.")
      .Value(StalenessOf(f.status.staleness));
  page.Gauge("cohort_staleness_bound_versions",
             "Staleness above which a push is dropped or damped.")
      .Value(StalenessBound(f));
}

void AddServer(const RunFigures& f, Page& page) {
  page.Histogram("cohort_barrier_wait_seconds",
                 "Time from a push's closing message to its commit.")
      .Value(f.sums.barrier_wait_seconds);
  page.Histogram("cohort_aggregation_duration_seconds",
                 "Time from the first complete partition to the commit.")
      .Value(f.sums.aggregation_seconds);
  AddFolds(f.sums.apply_seconds, f.service, page);
  page.Gauge("cohort_inflight_limit_bytes", "Limit on the gradients held.")
      .Value(f.service.inflight_bytes_max);
  page.Counter("cohort_backpressure_total",
               "Messages that waited because of a limit.")
      .Value(f.service.inflight_paused, {{"reason", "inflight"}});
  page.Gauge("cohort_storage_free_bytes",
             "Free space where checkpoints, or else results, are written.")
      .Value(f.storage_free_bytes);
  AddMemoryLimit(f.memory_limit_bytes, page);
}

void AddCheckpoints(const RunFigures& f, Page& page) {
  const CheckpointFigures& files = f.checkpoint;
  page.Histogram("cohort_checkpoint_duration_seconds",
                 "Time to write one checkpoint to disk.")
      .Value(files.duration_seconds);
  page.Gauge("cohort_checkpoint_size_bytes", "Size of the newest checkpoint.")
      .Value(files.size_bytes);
  page.Counter("cohort_checkpoints_total", "Checkpoints written to disk.")
      .Value(files.written);
  page.Counter("cohort_checkpoint_failures_total",
               "Checkpoints that could not be written.")
      .Value(files.failed_disk_full, {{"reason", "disk_full"}})
      .Value(files.failed_io, {{"reason", "io"}});
  page.Gauge("cohort_checkpoint_last_success_timestamp_seconds",
             "Time at which the newest checkpoint was written, in seconds "
             "since 1970.")
      .Value(files.written_at);
  page.Gauge("cohort_checkpoint_last_version",
             "Version of the newest checkpoint.")
      .Value(files.version);
  page.Gauge("cohort_checkpoint_interval_versions",
             "Steps between two checkpoints; 0: only at the end.")
      .Value(f.checkpoint_every);
  page.Counter(
          "cohort_restores_total",
          "Checkpoints read on start: continued from, or skipped as damaged.")
      .Value(files.restored, {{"result", "ok"}})
      .Value(files.damaged_skipped, {{"result", "damaged_skipped"}});
  page.Gauge("cohort_restore_duration_seconds",
             "Time to read the checkpoint on start.")
      .Value(files.restore_seconds);
}

void AddBatchNorm(const RunFigures& f, Page& page) {
  page.Histogram("cohort_bn_rendezvous_wait_seconds",
                 "Time that a member waits for the others.")
      .Value(f.sums.forward_wait_seconds, {{"phase", "forward"}})
      .Value(f.sums.backward_wait_seconds, {{"phase", "backward"}});
  page.Gauge("cohort_bn_drift_ratio",
             "Largest deviation of a worker's batch from the combined one at "
             "the newest sampled commit, in standard deviations.");
  for (const auto& [layer, ratio] : f.sums.drift) {
    if (layer >= kLayerSeriesMax ||
        layer >= static_cast<int64_t>(f.model.layers.size())) {
      continue;
    }
    page.Value(ratio,
               {{"layer", f.model.layers[static_cast<size_t>(layer)].name}});
  }
  const StatisticsCounts& counts = f.status.statistics;
  page.Counter("cohort_bn_statistics_total",
               "Pushes whose moments went into the moving statistics.")
      .Value(counts.folded, {{"action", "folded"}})
      .Value(counts.damped, {{"action", "damped"}})
      .Value(counts.dropped, {{"action", "dropped"}});
}

// Series of shards exist only where there are several.
void AddShards(const RunFigures& f, Page& page) {
  const auto each = [&f, &page](auto value) {
    for (const ShardFigures& shard : f.shards) {
      page.Value(value(shard), {{"shard", std::to_string(shard.shard)}});
    }
  };
  page.Gauge("cohort_shards", "Server processes that share the model.")
      .Value(std::max<size_t>(1, f.shards.size()));
  page.Gauge("cohort_shard_connected",
             "1 while the shard is connected to shard 0, 0 while it is not.");
  each([](const ShardFigures& s) { return s.connected ? 1 : 0; });
  page.Counter("cohort_shard_losses_total",
               "Times that the connection to the shard was lost.");
  each([](const ShardFigures& s) { return s.losses; });
  page.Gauge("cohort_shard_generation",
             "Generation of the run that the shard belongs to.");
  each([](const ShardFigures& s) { return s.generation; });
  page.Gauge("cohort_shard_partitions", "Partitions that the shard owns.");
  each([](const ShardFigures& s) { return s.partitions; });
  page.Gauge("cohort_shard_weights_bytes", "Weights that the shard owns.");
  each([](const ShardFigures& s) { return s.weights_bytes; });
  page.Gauge("cohort_shard_prepare_seconds",
             "Time from the plan of the newest commit to the shard's last "
             "fold.");
  each([](const ShardFigures& s) { return s.prepare_seconds; });
  page.Counter("cohort_shard_prepare_seconds_total",
               "Sum of these times over all commits.");
  each([](const ShardFigures& s) { return s.prepare_seconds_total; });
  page.Counter("cohort_shard_holdup_seconds_total",
               "Time in which commits waited for this shard only.");
  each([](const ShardFigures& s) { return s.holdup_seconds_total; });
}

}  // namespace

MetricFamilies RunFamilies(const RunFigures& figures) {
  Page page;
  AddRun(figures, page);
  AddLearning(figures, page);
  AddMembers(figures, page);
  AddWorkers(figures, page);
  AddPushes(figures, page);
  AddServer(figures, page);
  AddShards(figures, page);
  AddCheckpoints(figures, page);
  AddBatchNorm(figures, page);
  return page.Take();
}

}  // namespace cohort
