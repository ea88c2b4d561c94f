#include "server/status/run_status.h"

#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "server/status/hold_ups.h"

namespace cohort {
namespace {

void FillMap(const SettingValues& values,
             google::protobuf::Map<std::string, std::string>* proto) {
  proto->insert(values.begin(), values.end());
}

void AddTest(const RunFigures& figures, v1::Status& proto) {
  if (figures.status.test.has_value()) {
    const EvaluationSums& test = *figures.status.test;
    proto.set_test_accuracy(Accuracy(test));
    const std::optional<double> top5 = TopFiveAccuracy(test);
    if (top5.has_value()) proto.set_test_top5_accuracy(*top5);
    const std::optional<double> miou = MeanIou(test);
    if (miou.has_value()) proto.set_test_miou(*miou);
    for (const std::optional<double>& iou : ClassIou(test)) {
      v1::ClassIou* to = proto.add_test_class_iou();
      if (iou.has_value()) to->set_iou(*iou);
    }
  }
  if (!figures.sums.test.has_value()) return;
  const EvaluationPoint& test = *figures.sums.test;
  proto.set_test_version(test.version);
  proto.set_test_loss(test.loss);
  // Files of the run remember an evaluation that the checkpoint does not.
  if (figures.status.test.has_value()) return;
  proto.set_test_accuracy(test.accuracy);
  if (test.mean_iou.has_value()) proto.set_test_miou(*test.mean_iou);
}

void AddProgress(const RunFigures& figures, v1::Status& proto) {
  const StatusView& view = figures.status;
  proto.set_run_id(view.run_id);
  proto.set_run_name(view.run_name);
  proto.set_state(view.state);
  proto.set_phase(std::string(PhaseName(view.phase)));
  for (Rank rank : WaitedFor(view)) proto.add_waited_for(rank.value());
  proto.set_waiting_ms(absl::ToInt64Milliseconds(view.waiting));
  proto.set_ended(view.ended);
  proto.set_version(view.version.value());
  proto.set_attempt(view.attempt.value());
  proto.set_data_epoch(view.data_epoch);
  proto.set_local_steps(view.local_steps);
  proto.set_epochs(view.epochs);
  proto.set_samples(view.samples);
  proto.set_samples_total(view.samples_total);
  proto.set_samples_per_second(figures.samples_per_second);
  if (figures.seconds_left.has_value()) {
    proto.set_eta_seconds(*figures.seconds_left);
  }
  proto.set_learning_rate(view.learning_rate);
  if (view.train_loss.has_value()) proto.set_train_loss(*view.train_loss);
  const RunSums& sums = figures.sums;
  if (sums.train_accuracy.has_value()) {
    proto.set_train_accuracy(*sums.train_accuracy);
  }
  if (sums.gradient_norm.has_value()) {
    proto.set_gradient_norm(*sums.gradient_norm);
  }
  proto.mutable_measures()->insert(view.measures.begin(), view.measures.end());
  proto.set_data_problem(view.data_problem);
  proto.set_workers_live(view.workers_live);
  proto.set_workers_expected(view.workers_expected);
  proto.set_workers_min(view.workers_min);
}

void AddWorkers(const RunFigures& figures, v1::Status& proto) {
  for (const StatusView::Worker& worker : figures.status.workers) {
    v1::WorkerStatus& to = *proto.add_workers();
    to.set_rank(worker.rank.value());
    to.set_state(worker.state);
    to.set_activity(std::string(worker.activity));
    to.set_waits_in(worker.waits_in);
    to.set_incarnation(worker.incarnation.value());
    to.set_description(worker.description);
    to.set_build(worker.build);
    to.set_batch_size(worker.batch_size);
    to.set_sequence(worker.sequence.value());
    if (worker.incarnation != Incarnation()) {
      to.set_silent_ms(absl::ToInt64Milliseconds(worker.silent));
    }
    to.set_lag_versions(worker.lag_versions);
    if (worker.staleness_versions.has_value()) {
      to.set_staleness_versions(*worker.staleness_versions);
    }
    to.set_pushes(worker.pushes);
    const auto last = figures.sums.last_arrivals.find(worker.rank);
    if (last != figures.sums.last_arrivals.end()) {
      to.set_last_arrivals(last->second);
    }
    const WorkerReport& report = worker.report;
    to.mutable_phase_seconds()->insert(report.phases.begin(),
                                       report.phases.end());
    if (report.cpu_cores.has_value()) to.set_cpu_cores(*report.cpu_cores);
    if (report.resident_bytes.has_value()) {
      to.set_resident_bytes(*report.resident_bytes);
    }
    to.set_transport(report.transport);
  }
}

void AddSlowWorkers(const StatusView& view, v1::Status& proto) {
  for (const SlowWorker& worker : SlowWorkers(view)) {
    v1::SlowWorker* to = proto.add_slow_workers();
    to->set_rank(worker.rank.value());
    to->set_own_seconds(worker.own_seconds);
    to->set_median_seconds(worker.median_seconds);
  }
}

void AddShards(const RunFigures& figures, v1::Status& proto) {
  for (const ShardFigures& shard : figures.shards) {
    v1::ShardStatus& to = *proto.add_shards();
    to.set_shard(shard.shard);
    to.set_address(shard.address);
    to.set_connected(shard.connected);
    if (shard.since > 0) to.set_since_unix_s(shard.since);
    to.set_lost_because(shard.lost_because);
    to.set_losses(shard.losses);
    to.set_generation(shard.generation);
    to.set_partitions(shard.partitions);
    to.set_weights_bytes(shard.weights_bytes);
    if (shard.prepare_seconds.has_value()) {
      to.set_prepare_seconds(*shard.prepare_seconds);
    }
    to.set_prepare_seconds_total(shard.prepare_seconds_total);
    to.set_holdup_seconds_total(shard.holdup_seconds_total);
  }
}

void AddCounts(const RunFigures& figures, v1::Status& proto) {
  const StatusView& view = figures.status;
  const std::map<std::string, int64_t> counts = ByName(view.counts);
  proto.mutable_counters()->insert(counts.begin(), counts.end());
  for (const auto& [name, count] : PushVerdicts(figures)) {
    (*proto.mutable_push_verdicts())[name] = count;
  }
  proto.mutable_staleness_versions()->insert(view.staleness.begin(),
                                             view.staleness.end());
}

void FillWaits(const BucketCounts& waits, v1::WaitSums* proto) {
  proto->set_count(waits.count());
  proto->set_total_seconds(waits.sum());
}

void FillBatchNorm(const RunFigures& figures, v1::BatchNormStatus& proto) {
  proto.set_normalization(NormalizationName(figures.policy_options));
  for (StatisticsKind kind : figures.policy_options.statistics) {
    proto.add_statistics(std::string(StatisticsName(kind)));
  }
  const StatisticsCounts& counts = figures.status.statistics;
  proto.set_folded(counts.folded);
  proto.set_damped(counts.damped);
  proto.set_dropped(counts.dropped);
  FillWaits(figures.sums.forward_wait_seconds, proto.mutable_forward_waits());
  FillWaits(figures.sums.backward_wait_seconds, proto.mutable_backward_waits());
  for (const ModelFigures::Layer& layer : figures.model.layers) {
    const auto drift = figures.sums.drift.find(proto.layers_size());
    v1::BatchNormLayer* to = proto.add_layers();
    to->set_name(layer.name);
    to->set_channels(layer.channels);
    if (drift != figures.sums.drift.end()) to->set_drift(drift->second);
  }
}

void FillCheckpoint(const CheckpointFigures& files,
                    v1::CheckpointStatus& proto) {
  proto.set_enabled(files.enabled);
  if (files.version.has_value()) proto.set_version(*files.version);
  if (files.written_at.has_value()) proto.set_written_unix_s(*files.written_at);
  if (files.model_version.has_value()) {
    proto.set_model_version(*files.model_version);
  }
  proto.set_failures(files.failed_disk_full + files.failed_io);
  proto.set_restored(files.restored > 0);
}

void AddServer(const RunFigures& figures, v1::Status& proto) {
  proto.set_build(figures.build);
  proto.set_server_unix_us(static_cast<int64_t>(figures.now * 1e6));
  proto.set_uptime_seconds(absl::ToDoubleSeconds(figures.uptime));
  proto.set_address(figures.address);
  proto.set_dashboards_url(figures.dashboards_url);
  v1::ProcessStatus& process = *proto.mutable_process();
  process.set_inflight_bytes(figures.service.inflight_bytes);
  process.set_inflight_bytes_max(figures.service.inflight_bytes_max);
  process.set_resident_bytes(figures.process.resident_bytes);
  process.set_cpu_seconds(figures.process.cpu_seconds);
  process.set_open_fds(figures.process.open_fds);
}

void FillCurves(const RunSums& sums, v1::Curves& proto) {
  for (const TrainingPoint& point : sums.curve.Points()) {
    v1::TrainPoint* to = proto.add_train();
    to->set_version(point.version);
    to->set_samples(point.samples);
    to->set_elapsed_seconds(point.seconds);
    if (point.loss.has_value()) to->set_loss(*point.loss);
    if (point.accuracy.has_value()) to->set_accuracy(*point.accuracy);
    to->set_learning_rate(point.learning_rate);
    to->set_samples_per_second(point.samples_per_second);
  }
  for (const EvaluationPoint& point : sums.evaluations) {
    v1::TestPoint* to = proto.add_test();
    to->set_version(point.version);
    to->set_data_epoch(point.epoch);
    to->set_elapsed_seconds(point.seconds);
    to->set_statistics(point.statistics);
    to->set_loss(point.loss);
    to->set_accuracy(point.accuracy);
    if (point.mean_iou.has_value()) to->set_miou(*point.mean_iou);
  }
}

void AddEvents(const RunFigures& figures, v1::Status& proto) {
  for (const RunEvent& event : figures.sums.events) {
    v1::RunEvent* to = proto.add_events();
    to->set_unix_s(figures.now -
                   absl::ToDoubleSeconds(figures.sums.now - event.at));
    to->set_severity(std::string(LogLevelName(event.log.severity)));
    if (event.log.worker.has_value()) {
      to->set_rank(event.log.worker->rank.value());
    }
    to->set_text(event.log.text);
  }
}

}  // namespace

v1::PolicyChange PolicyChangeStatus(const PolicyRecord& record) {
  v1::PolicyChange change;
  change.set_policy_epoch(record.policy_epoch);
  change.set_version(record.version.value());
  change.set_samples(record.samples);
  FillMap(record.changed, change.mutable_settings());
  change.set_text(record.text);
  change.set_author(record.note.author);
  change.set_reason(record.note.reason);
  return change;
}

v1::GetPolicyReply PolicyStatus(const PolicyView& policy, StatusParts parts) {
  v1::GetPolicyReply proto;
  proto.set_policy_epoch(policy.policy_epoch);
  proto.set_text(policy.text);
  FillMap(policy.settings, proto.mutable_settings());
  FillMap(policy.pending, proto.mutable_pending());
  proto.set_pending_reason(policy.pending_reason);
  if (!policy.history.empty()) {
    proto.set_since_version(policy.history.back().version.value());
  }
  if (parts == StatusParts::kNone) return proto;
  for (const PolicyRecord& record : policy.history) {
    *proto.add_history() = PolicyChangeStatus(record);
  }
  return proto;
}

v1::Status RunStatus(const RunFigures& figures, StatusParts parts) {
  v1::Status proto;
  AddProgress(figures, proto);
  AddTest(figures, proto);
  AddWorkers(figures, proto);
  AddSlowWorkers(figures.status, proto);
  AddShards(figures, proto);
  AddCounts(figures, proto);
  AddServer(figures, proto);
  *proto.mutable_policy() = PolicyStatus(figures.policy, parts);
  proto.mutable_policy()->set_run_id(figures.status.run_id);
  FillBatchNorm(figures, *proto.mutable_batch_norm());
  FillCheckpoint(figures.checkpoint, *proto.mutable_checkpoint());
  proto.set_checkpoint_problem(figures.checkpoint.problem);
  if (parts == StatusParts::kNone) return proto;
  FillCurves(figures.sums, *proto.mutable_curves());
  AddEvents(figures, proto);
  return proto;
}

}  // namespace cohort
