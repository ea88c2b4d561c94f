#include "server/ctl/status_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/measures/staleness_histogram.h"
#include "server/ctl/byte_count.h"
#include "server/ctl/json_line.h"
#include "server/ctl/status_words.h"
#include "server/ctl/table.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

std::string PolicyText(const v1::GetPolicyReply& policy) {
  return absl::StrCat(policy.policy(), ", since step ", PolicyVersion(policy));
}

int LiveWorkers(const v1::Status& status) {
  return static_cast<int>(std::count_if(
      status.workers().begin(), status.workers().end(),
      [](const v1::WorkerStatus& w) { return w.state() == "live"; }));
}

Json ClassIouToJson(const v1::Status& status) {
  Json classes = Json::array();
  for (const v1::ClassIou& of : status.test_class_iou()) {
    classes.push_back(of.has_iou() ? Json(of.iou()) : Json());
  }
  return classes;
}

Json PhasesToJson(const v1::WorkerStatus& worker) {
  Json phases = Json::object();
  for (const auto& [name, seconds] : std::map<std::string, double>(
           worker.phase_seconds().begin(), worker.phase_seconds().end())) {
    phases[name] = seconds;
  }
  return phases;
}

Json WorkersToJson(const v1::Status& status) {
  Json workers = Json::array();
  for (const v1::WorkerStatus& w : status.workers()) {
    workers.push_back(
        {{"rank", w.rank()},
         {"state", w.state()},
         {"incarnation", w.incarnation()},
         {"description", w.description()},
         {"batch_size", w.batch_size()},
         {"sequence", w.sequence()},
         {"silent_ms", w.incarnation() == 0 ? Json() : Json(w.silent_ms())},
         {"cpu_cores", w.has_cpu_cores() ? Json(w.cpu_cores()) : Json()},
         {"resident_bytes",
          w.has_resident_bytes() ? Json(w.resident_bytes()) : Json()},
         {"transport", w.transport()},
         {"phase_seconds", PhasesToJson(w)}});
  }
  return workers;
}

Json ShardsToJson(const v1::Status& status) {
  Json shards = Json::array();
  for (const v1::ShardStatus& s : status.shards()) {
    shards.push_back(
        {{"shard", s.shard()},
         {"address", s.address()},
         {"connected", s.connected()},
         {"since_unix_s", s.shard() == 0 ? Json() : Json(s.since_unix_s())},
         {"lost_because", s.lost_because()},
         {"losses", s.losses()},
         {"generation", s.generation()},
         {"partitions", s.partitions()},
         {"weights_bytes", s.weights_bytes()},
         {"prepare_seconds",
          s.has_prepare_seconds() ? Json(s.prepare_seconds()) : Json()},
         {"prepare_seconds_total", s.prepare_seconds_total()},
         {"holdup_seconds_total", s.holdup_seconds_total()}});
  }
  return shards;
}

Json EndJson(absl::Time end) {
  return end == absl::InfiniteFuture()
             ? Json()
             : Json(absl::FormatTime(absl::RFC3339_sec, end,
                                     absl::UTCTimeZone()));
}

}  // namespace

int64_t PolicyVersion(const v1::GetPolicyReply& policy) {
  const int changes = policy.history_size();
  return changes == 0 ? 0 : policy.history(changes - 1).version();
}

std::string OverviewText(const Overview& overview, bool bold) {
  const v1::Status& status = overview.status;
  std::string text;
  const auto line = [&](absl::string_view name, absl::string_view value) {
    absl::StrAppendFormat(&text, "%-14s %s\n", name, value);
  };
  line("run", absl::StrCat(RunText(status), " at ", overview.server));
  line("connection", ConnectionText(overview.connection, absl::Now()));
  line("state", Bold(Printable(status.state()), bold));
  line("step", absl::StrCat(status.version()));
  line("epoch", EpochText(status));
  if (status.has_train_loss()) {
    line("loss", absl::StrFormat("%.4f", status.train_loss()));
  }
  for (const auto& [name, value] : MeasuresOf(status)) {
    line(Printable(name), absl::StrFormat("%.6g", value));
  }
  for (const auto& [name, value] : TestMeasures(status)) {
    line(name, value);
  }
  line("learning rate", absl::StrFormat("%.6g", status.learning_rate()));
  line("rate", RateText(status));
  line("policy", PolicyText(overview.policy));
  const StalenessCounts staleness(status.staleness().begin(),
                                  status.staleness().end());
  if (!staleness.empty()) {
    line("staleness", absl::StrCat("steps ", StalenessText(staleness)));
  }
  if (!overview.policy.pending().empty()) {
    line("change to", PendingText(overview.policy));
  }
  if (!status.checkpoint_problem().empty()) {
    line("checkpoint", Bold(Printable(status.checkpoint_problem()), bold));
  }
  if (!status.data_problem().empty()) {
    line("data", Bold(Printable(status.data_problem()), bold));
  }
  absl::StrAppend(&text, "\n", WorkersText(status, bold));
  if (status.shards().empty()) return text;
  return absl::StrCat(text, "\n", ShardsText(status, bold));
}

std::string OverviewLine(const Overview& overview) {
  const v1::Status& status = overview.status;
  std::string text =
      absl::StrCat("step ", status.version(), ", epoch ", EpochText(status));
  if (status.has_train_loss()) {
    absl::StrAppendFormat(&text, ", loss %.4f", status.train_loss());
  }
  const auto measures = TestMeasures(status);
  if (!measures.empty()) {
    absl::StrAppend(&text, ", ", measures.front().first, " ",
                    measures.front().second);
  }
  absl::StrAppend(&text, ", ", RateText(status), ", workers ",
                  LiveWorkers(status), "/", status.workers_size(), ", ",
                  PolicyText(overview.policy), ", ", Printable(status.state()));
  if (!overview.policy.pending().empty()) {
    absl::StrAppend(&text, ", change to ", PendingText(overview.policy));
  }
  return text;
}

std::string OverviewJson(const Overview& overview) {
  const v1::Status& s = overview.status;
  const v1::GetPolicyReply& p = overview.policy;
  Json json = {
      {"run", s.run_id()},
      {"run_name", s.run_name()},
      {"server", overview.server},
      {"state", s.state()},
      {"ended", s.ended()},
      {"version", s.version()},
      {"attempt", s.attempt()},
      {"data_epoch", s.data_epoch()},
      {"epochs", s.epochs()},
      {"samples", s.samples()},
      {"samples_total", s.samples_total()},
      {"samples_per_second", s.samples_per_second()},
      {"learning_rate", s.learning_rate()},
      {"train_loss", s.has_train_loss() ? Json(s.train_loss()) : Json()},
      {"measures", MeasuresOf(s)},
      {"test_accuracy",
       s.has_test_accuracy() ? Json(s.test_accuracy()) : Json()},
      {"test_top5_accuracy",
       s.has_test_top5_accuracy() ? Json(s.test_top5_accuracy()) : Json()},
      {"test_miou", s.has_test_miou() ? Json(s.test_miou()) : Json()},
      {"test_class_iou", ClassIouToJson(s)},
      {"checkpoint_problem", s.checkpoint_problem()},
      {"data_problem", s.data_problem()}};
  const ConnectionView& connection = overview.connection;
  json["connection"] = {
      {"encrypted", connection.encrypted},
      {"client", connection.client},
      {"own_certificate_end", EndJson(connection.own_end)},
      {"server_certificate_end", EndJson(connection.server_end)}};
  json["policy"] = {{"policy_epoch", p.policy_epoch()},
                    {"text", p.policy()},
                    {"since_version", PolicyVersion(p)},
                    {"pending", Json::object()},
                    {"pending_reason", p.pending_reason()}};
  for (const auto& [name, value] : std::map<std::string, std::string>(
           p.pending().begin(), p.pending().end())) {
    json["policy"]["pending"][name] = value;
  }
  json["workers"] = WorkersToJson(s);
  json["shards"] = ShardsToJson(s);
  json["staleness_versions"] = Json::object();
  for (const auto& [staleness, count] :
       std::map<int64_t, int64_t>(s.staleness().begin(), s.staleness().end())) {
    json["staleness_versions"][absl::StrCat(staleness)] = count;
  }
  json["counters"] = Json::object();
  for (const auto& [name, count] : std::map<std::string, int64_t>(
           s.counters().begin(), s.counters().end())) {
    json["counters"][name] = count;
  }
  return JsonLine(json);
}

std::string WorkersText(const v1::Status& status, bool bold) {
  Table table({"rank", "state", "batch", "heard from", "cores", "memory", "via",
               "process"});
  for (const v1::WorkerStatus& w : status.workers()) {
    table.Add({absl::StrCat(w.rank()), w.state(), absl::StrCat(w.batch_size()),
               AgeText(w), CoresText(w), MemoryText(w),
               Printable(w.transport()), Printable(w.description())});
  }
  return table.ToString(bold);
}

std::string ShardsText(const v1::Status& status, bool bold) {
  Table table({"shard", "state", "partitions", "weights", "last prepare",
               "waited for alone", "lost", "address"});
  for (const v1::ShardStatus& s : status.shards()) {
    table.Add({absl::StrCat(s.shard()), ShardStateText(s, status),
               absl::StrCat(s.partitions()), ByteCountText(s.weights_bytes()),
               s.has_prepare_seconds()
                   ? absl::StrFormat("%.1f ms", 1000 * s.prepare_seconds())
                   : "none yet",
               HoldupText(s), absl::StrCat(s.losses()),
               s.shard() == 0 ? "this server" : Printable(s.address())});
  }
  return table.ToString(bold);
}

std::string WorkersJson(const v1::Status& status) {
  return JsonLine(
      {{"run", status.run_id()}, {"workers", WorkersToJson(status)}});
}

}  // namespace cohort
