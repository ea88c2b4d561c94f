#include "server/ctl/status_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/measures/staleness_histogram.h"
#include "common/status_macros.h"
#include "common/wire/proto_json.h"
#include "server/ctl/byte_count.h"
#include "server/ctl/json_line.h"
#include "server/ctl/status_words.h"
#include "server/ctl/table.h"

namespace cohort {
namespace {

std::string PolicyText(const v1::GetPolicyReply& policy) {
  return absl::StrCat(policy.text(), ", since step ", policy.since_version());
}

nlohmann::json EndJson(absl::Time end) {
  if (end == absl::InfiniteFuture()) return nullptr;
  return absl::FormatTime(absl::RFC3339_sec, end, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<Overview> LookAt(AdminClient& server) {
  Overview overview{.server = server.server()};
  COHORT_ASSIGN_OR_RETURN(overview.status, server.GetStatus());
  overview.connection = ConnectionOf(server.target(), overview.status);
  return overview;
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
  line("step", StepText(status));
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
  line("policy", PolicyText(status.policy()));
  const StalenessCounts staleness(status.staleness_versions().begin(),
                                  status.staleness_versions().end());
  if (!staleness.empty()) {
    line("staleness", absl::StrCat("steps: ", StalenessText(staleness)));
  }
  if (!status.policy().pending().empty()) {
    line("change to", PendingText(status.policy()));
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
      absl::StrCat("step ", StepText(status), ", epoch ", EpochText(status));
  if (status.has_train_loss()) {
    absl::StrAppendFormat(&text, ", loss %.4f", status.train_loss());
  }
  const auto measures = TestMeasures(status);
  if (!measures.empty()) {
    absl::StrAppend(&text, ", ", measures.front().first, " ",
                    measures.front().second);
  }
  absl::StrAppend(&text, ", ", RateText(status), ", workers ",
                  status.workers_live(), "/", status.workers_expected(), ", ",
                  PolicyText(status.policy()), ", ", Printable(status.state()));
  if (!status.policy().pending().empty()) {
    absl::StrAppend(&text, ", change to ", PendingText(status.policy()));
  }
  return text;
}

std::string OverviewJson(const Overview& overview) {
  nlohmann::json json = ProtoJson(overview.status);
  const ConnectionView& connection = overview.connection;
  json["server"] = overview.server;
  json["connection"] = {
      {"encrypted", connection.encrypted},
      {"client", connection.client},
      {"own_certificate_end", EndJson(connection.own_end)},
      {"server_certificate_end", EndJson(connection.server_end)}};
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
      {{"run", status.run_id()}, {"workers", ProtoJson(status)["workers"]}});
}

}  // namespace cohort
