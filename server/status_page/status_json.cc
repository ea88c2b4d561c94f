#include "server/status_page/status_json.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(absl::string_view view) {
  return std::string(view.data(), view.size());
}

// JSON has no infinity and no NaN.
Json Number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

template <typename T>
Json Maybe(const std::optional<T>& value) {
  if (!value.has_value()) return nullptr;
  if constexpr (std::is_floating_point_v<T>) return Number(*value);
  return *value;
}

Json RanksJson(const std::vector<Rank>& ranks) {
  Json list = Json::array();
  for (Rank rank : ranks) list.push_back(rank.value());
  return list;
}

Json PolicyJson(const PolicyView& policy) {
  Json history = Json::array();
  for (const PolicyRecord& record : policy.history) {
    history.push_back({{"policy_epoch", record.policy_epoch},
                       {"version", record.version.value()},
                       {"samples", record.samples},
                       {"text", record.text},
                       {"author", record.note.author},
                       {"reason", record.note.reason},
                       {"changed", record.changed}});
  }
  return {{"policy_epoch", policy.policy_epoch},
          {"text", policy.text},
          {"settings", policy.settings},
          {"pending", policy.pending},
          {"pending_reason", policy.pending_reason},
          {"history", std::move(history)}};
}

Json EvaluationJson(const EvaluationPoint& point) {
  return {
      {"version", point.version},         {"epoch", point.epoch},
      {"seconds", Number(point.seconds)}, {"statistics", point.statistics},
      {"loss", Number(point.loss)},       {"accuracy", Number(point.accuracy)},
      {"mean_iou", Maybe(point.mean_iou)}};
}

Json CurvesJson(const RunSums& sums) {
  Json train = Json::array();
  for (const TrainingPoint& point : sums.curve.Points()) {
    train.push_back({{"version", point.version},
                     {"samples", point.samples},
                     {"seconds", Number(point.seconds)},
                     {"loss", Maybe(point.loss)},
                     {"accuracy", Maybe(point.accuracy)},
                     {"learning_rate", Number(point.learning_rate)},
                     {"samples_per_second", Number(point.samples_per_second)}});
  }
  Json test = Json::array();
  for (const EvaluationPoint& point : sums.evaluations) {
    test.push_back(EvaluationJson(point));
  }
  return {{"train", std::move(train)}, {"test", std::move(test)}};
}

Json PhasesJson(const PhaseSeconds& phases) {
  if (phases.empty()) return nullptr;
  Json json = Json::object();
  for (const auto& [phase, seconds] : phases) json[phase] = Number(seconds);
  return json;
}

// Means over the workers that have reported phases.
Json MeanPhasesJson(const StatusView& status) {
  PhaseSeconds sums;
  double workers = 0;
  for (const StatusView::Worker& worker : status.workers) {
    if (worker.report.phases.empty()) continue;
    ++workers;
    for (const auto& [phase, seconds] : worker.report.phases)
      sums[phase] += seconds;
  }
  for (auto& [phase, seconds] : sums) seconds /= workers;
  return PhasesJson(sums);
}

Json WorkersJson(const RunFigures& figures) {
  Json workers = Json::array();
  for (const StatusView::Worker& worker : figures.status.workers) {
    const bool seen = worker.incarnation != Incarnation();
    const auto last = figures.sums.last_arrivals.find(worker.rank);
    Json json = {{"rank", worker.rank.value()},
                 {"state", Text(worker.activity)},
                 {"description", worker.description},
                 {"incarnation", worker.incarnation.value()},
                 {"batch_size", worker.batch_size},
                 {"sequence", worker.sequence.value()},
                 {"lag_versions", worker.lag_versions},
                 {"staleness_versions", Maybe(worker.staleness_versions)},
                 {"silent_seconds", nullptr},
                 {"last_arrivals", 0},
                 {"pushes", worker.pushes},
                 {"cpu_cores", Maybe(worker.report.cpu_cores)},
                 {"resident_bytes", Maybe(worker.report.resident_bytes)},
                 {"transport", worker.report.transport},
                 {"phases", PhasesJson(worker.report.phases)}};
    if (seen) {
      json["silent_seconds"] = Number(absl::ToDoubleSeconds(worker.silent));
    }
    if (last != figures.sums.last_arrivals.end()) {
      json["last_arrivals"] = last->second;
    }
    workers.push_back(std::move(json));
  }
  return workers;
}

// Counts in ranges whose bounds double.
Json StalenessJson(const StalenessCounts& counts) {
  std::map<int64_t, int64_t> ranges;
  for (const auto& [versions, pushes] : counts) {
    int64_t begin = 0;
    if (versions > 0) {
      begin = 1;
      while (2 * begin <= versions) begin *= 2;
    }
    ranges[begin] += pushes;
  }
  Json json = Json::array();
  for (const auto& [begin, pushes] : ranges) {
    const int64_t end = 2 * begin - 1;
    json.push_back(
        {{"versions", begin >= kStalenessCountedMax
                          ? absl::StrCat(begin, "+")
                          : (end <= begin ? absl::StrCat(begin)
                                          : absl::StrCat(begin, "-", end))},
         {"count", pushes}});
  }
  return json;
}

Json WaitsJson(const BucketCounts& waits) {
  Json json = {{"count", waits.count()},
               {"seconds", waits.sum()},
               {"mean_seconds", nullptr}};
  if (waits.count() > 0) json["mean_seconds"] = Number(waits.mean());
  return json;
}

Json BatchNormJson(const RunFigures& figures) {
  Json kinds = Json::array();
  for (StatisticsKind kind : figures.policy_options.statistics) {
    kinds.push_back(Text(StatisticsName(kind)));
  }
  Json layers = Json::array();
  for (size_t i = 0; i < figures.model.layers.size(); ++i) {
    const ModelFigures::Layer& layer = figures.model.layers[i];
    const auto drift = figures.sums.drift.find(static_cast<int32_t>(i));
    layers.push_back(
        {{"name", layer.name},
         {"channels", layer.channels},
         {"drift", drift == figures.sums.drift.end() ? Json(nullptr)
                                                     : Number(drift->second)}});
  }
  const StatisticsCounts& counts = figures.status.statistics;
  return {{"normalization", NormalizationName(figures.policy_options)},
          {"statistics", std::move(kinds)},
          {"folded", counts.folded},
          {"damped", counts.damped},
          {"dropped", counts.dropped},
          {"rendezvous",
           {{"forward", WaitsJson(figures.sums.forward_wait_seconds)},
            {"backward", WaitsJson(figures.sums.backward_wait_seconds)}}},
          {"layers", std::move(layers)}};
}

Json CheckpointJson(const RunFigures& figures) {
  const CheckpointFigures& files = figures.checkpoint;
  Json age = nullptr;
  if (files.written_at.has_value()) age = figures.now - *files.written_at;
  return {{"enabled", files.enabled},
          {"version", Maybe(files.version)},
          {"age_seconds", std::move(age)},
          {"model_version", Maybe(files.model_version)},
          {"failures", files.failed_disk_full + files.failed_io},
          {"problem", files.problem},
          {"restored", files.restored > 0}};
}

absl::string_view SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "error";
}

Json EventsJson(const RunFigures& figures) {
  Json events = Json::array();
  for (const RunEvent& event : figures.sums.events) {
    const double age = absl::ToDoubleSeconds(figures.uptime - event.uptime);
    const std::optional<WorkerProcess>& worker = event.log.worker;
    events.push_back({{"at", figures.now - age},
                      {"severity", Text(SeverityName(event.log.severity))},
                      {"worker", worker.has_value() ? Json(worker->rank.value())
                                                    : Json(nullptr)},
                      {"text", event.log.text}});
  }
  return events;
}

Json ServerJson(const RunFigures& figures) {
  return {{"inflight_bytes", figures.service.inflight_bytes},
          {"inflight_limit_bytes", figures.service.inflight_bytes_max},
          {"resident_bytes", figures.process.resident_bytes},
          {"cpu_seconds", figures.process.cpu_seconds},
          {"open_fds", figures.process.open_fds}};
}

Json ShardsJson(const RunFigures& figures) {
  Json shards = Json::array();
  for (const ShardFigures& shard : figures.shards) {
    Json seconds = nullptr;
    if (shard.since > 0) seconds = Number(figures.now - shard.since);
    shards.push_back(
        {{"shard", shard.shard},
         {"address", shard.address},
         {"connected", shard.connected},
         {"since_seconds", std::move(seconds)},
         {"lost_because", shard.lost_because},
         {"losses", shard.losses},
         {"generation", shard.generation},
         {"partitions", shard.partitions},
         {"weights_bytes", shard.weights_bytes},
         {"prepare_seconds", Maybe(shard.prepare_seconds)},
         {"prepare_seconds_total", Number(shard.prepare_seconds_total)},
         {"holdup_seconds_total", Number(shard.holdup_seconds_total)}});
  }
  return shards;
}

Json VerdictsJson(const RunFigures& figures) {
  Json json = Json::object();
  for (const auto& [name, count] : PushVerdicts(figures)) json[name] = count;
  return json;
}

void AddProgress(const RunFigures& figures, Json& json) {
  const StatusView& status = figures.status;
  json["state"] = Text(PhaseName(status.phase));
  json["state_text"] = status.state;
  json["waited_for"] = RanksJson(status.waited_for);
  json["ended"] = status.ended;
  json["version"] = status.version.value();
  json["attempt"] = status.attempt.value();
  json["epoch"] = status.data_epoch;
  json["epochs"] = status.epochs;
  json["samples"] = status.samples;
  json["samples_total"] = status.samples_total;
  json["samples_per_second"] = Number(figures.samples_per_second);
  json["eta_seconds"] = Maybe(figures.seconds_left);
}

}  // namespace

std::string StatusJson(const RunFigures& figures) {
  const StatusView& status = figures.status;
  const RunSums& sums = figures.sums;
  Json json = {
      {"run", status.run_id},
      {"run_name", status.run_name},
      {"build",
       {{"version", figures.build_version}, {"commit", figures.build_commit}}},
      {"now", figures.now},
      {"uptime_seconds", absl::ToDoubleSeconds(figures.uptime)},
      {"address", figures.address},
      {"dashboards_url", figures.dashboards_url}};
  AddProgress(figures, json);
  json["policy"] = PolicyJson(figures.policy);
  json["learning_rate"] = Number(status.learning_rate);
  json["train_loss"] = Maybe(sums.train_loss);
  json["train_accuracy"] = Maybe(sums.train_accuracy);
  json["gradient_norm"] = Maybe(sums.gradient_norm);
  json["measures"] = Json::object();
  for (const auto& [name, value] : status.measures) {
    json["measures"][name] = Number(value);
  }
  json["test"] =
      sums.test.has_value() ? EvaluationJson(*sums.test) : Json(nullptr);
  json["curves"] = CurvesJson(sums);
  json["phases"] = MeanPhasesJson(status);
  json["workers_live"] = status.workers_live;
  json["workers_expected"] = status.workers_expected;
  json["workers_min"] = status.workers_min;
  json["workers"] = WorkersJson(figures);
  json["barrier_waits"] = WaitsJson(sums.barrier_wait_seconds);
  json["verdicts"] = VerdictsJson(figures);
  json["staleness"] = StalenessJson(status.staleness);
  json["batch_norm"] = BatchNormJson(figures);
  json["checkpoint"] = CheckpointJson(figures);
  json["events"] = EventsJson(figures);
  json["server"] = ServerJson(figures);
  json["shards"] = ShardsJson(figures);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace cohort
