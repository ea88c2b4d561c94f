#include "server/status_page/status_tables.h"

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/clock.h"
#include "common/measures/measures.h"

namespace cohort {
namespace {

constexpr absl::string_view kMarker = "<!-- STATUS -->";

using Rows = std::vector<std::vector<std::string>>;

std::string Cells(const std::vector<std::string>& row, absl::string_view tag) {
  std::string html = "<tr>";
  for (const std::string& cell : row) {
    absl::StrAppend(&html, "<", tag, ">", EscapedHtml(cell), "</", tag, ">");
  }
  return html + "</tr>\n";
}

std::string Table(absl::string_view caption,
                  const std::vector<std::string>& heads, const Rows& rows) {
  std::string html = absl::StrCat("<table class=\"plain\"><caption>",
                                  EscapedHtml(caption), "</caption>\n");
  if (!heads.empty()) absl::StrAppend(&html, Cells(heads, "th"));
  for (const std::vector<std::string>& row : rows) {
    absl::StrAppend(&html, Cells(row, "td"));
  }
  return html + "</table>\n";
}

std::string LossText(const std::optional<double>& loss) {
  return loss.has_value() ? absl::StrFormat("%.4f", *loss) : "none yet";
}

// The default name contains the identifier.
std::string RunText(const StatusView& status) {
  if (status.run_name.empty()) return status.run_id;
  if (absl::StrContains(status.run_name, status.run_id)) {
    return status.run_name;
  }
  return absl::StrCat(status.run_name, " (", status.run_id, ")");
}

std::string RunTable(const RunFigures& figures) {
  const StatusView& status = figures.status;
  const RunSums& sums = figures.sums;
  Rows rows = {
      {"Run", RunText(status)},
      {"Policy", status.policy},
      {"Step", absl::StrCat(status.version.value())},
      {"Epoch", status.epochs == 0
                    ? "none, the data is the workers' own"
                    : absl::StrCat(status.data_epoch, " of ", status.epochs)},
      {"Images", absl::StrCat(status.samples, " of ", status.samples_total)},
      {"Images a second", absl::StrFormat("%.0f", figures.samples_per_second)},
      {"Learning rate", absl::StrFormat("%g", status.learning_rate)},
      {"Train loss", LossText(sums.train_loss)}};
  for (const auto& [name, value] : status.measures) {
    rows.push_back({name, absl::StrFormat("%.6g", value)});
  }
  if (sums.test.has_value()) {
    rows.push_back({"Test accuracy", PercentText(sums.test->accuracy)});
    if (sums.test->mean_iou.has_value()) {
      rows.push_back({"Test mIoU", PercentText(sums.test->mean_iou)});
    }
  }
  rows.push_back({"Workers", status.elastic()
                                 ? absl::StrCat(status.workers_live, ", from ",
                                                status.workers_min, " to ",
                                                status.workers_expected)
                                 : absl::StrCat(status.workers_live, " of ",
                                                status.workers_expected)});
  const CheckpointFigures& files = figures.checkpoint;
  rows.push_back({"Checkpoint", !files.enabled ? "none (no --checkpoint_dir)"
                                : files.version.has_value()
                                    ? absl::StrCat("step ", *files.version)
                                    : "none yet"});
  if (!files.problem.empty()) rows.push_back({"Problem", files.problem});
  if (files.model_version.has_value()) {
    rows.push_back({"Model", absl::StrCat("that of step ", *files.model_version,
                                          " is written")});
  }
  return Table("Run", {}, rows);
}

std::string WorkersTable(const RunFigures& figures) {
  Rows rows;
  for (const StatusView::Worker& worker : figures.status.workers) {
    const bool seen = worker.incarnation != Incarnation();
    const auto last = figures.sums.last_arrivals.find(worker.rank);
    rows.push_back(
        {absl::StrCat(worker.rank.value()),
         std::string(worker.activity.data(), worker.activity.size()),
         worker.description, absl::StrCat(worker.pushes),
         absl::StrCat(worker.lag_versions),
         absl::StrCat(last == figures.sums.last_arrivals.end() ? 0
                                                               : last->second),
         seen ? SecondsText(worker.silent) : "never seen"});
  }
  return Table("Workers",
               {"Worker", "State", "Process", "Pushes", "Lag", "Came last",
                "Silent for"},
               rows);
}

std::string VerdictsTable(const RunFigures& figures) {
  Rows rows;
  for (const auto& [name, count] : PushVerdicts(figures)) {
    if (count > 0) rows.push_back({name, absl::StrCat(count)});
  }
  return Table("Pushes by verdict", {}, rows);
}

std::string PolicyTable(const RunFigures& figures) {
  Rows rows;
  const std::vector<PolicyRecord>& history = figures.policy.history;
  for (auto it = history.rbegin(); it != history.rend(); ++it) {
    rows.push_back({absl::StrCat(it->policy_epoch),
                    absl::StrCat(it->version.value()), it->text});
  }
  return Table("Policy, newest first", {"Policy", "From step", "What"}, rows);
}

std::string EventsTable(const RunFigures& figures) {
  Rows rows;
  const std::deque<RunEvent>& events = figures.sums.events;
  for (auto it = events.rbegin(); it != events.rend(); ++it) {
    rows.push_back(
        {absl::StrCat(SecondsText(figures.uptime - it->uptime), " ago"),
         it->log.text});
  }
  return Table("Events, newest first", {}, rows);
}

std::string ShardsTable(const RunFigures& figures) {
  Rows rows;
  for (const ShardFigures& shard : figures.shards) {
    const absl::Duration since = absl::Seconds(figures.now - shard.since);
    rows.push_back(
        {absl::StrCat(shard.shard),
         shard.connected ? "connected"
         : shard.generation == 0
             ? "not there yet"
             : absl::StrCat("gone for ", SecondsText(since)),
         absl::StrCat(shard.partitions), absl::StrCat(shard.losses),
         shard.prepare_seconds.has_value()
             ? absl::StrFormat("%.1f ms", 1000 * *shard.prepare_seconds)
             : "none yet",
         shard.address});
  }
  if (rows.empty()) return "";
  return Table(
      "Shards",
      {"Shard", "State", "Partitions", "Lost", "Last prepare", "Address"},
      rows);
}

std::string LayersTable(const RunFigures& figures) {
  Rows rows;
  for (size_t i = 0; i < figures.model.layers.size(); ++i) {
    const ModelFigures::Layer& layer = figures.model.layers[i];
    const auto drift = figures.sums.drift.find(static_cast<int32_t>(i));
    rows.push_back({layer.name, absl::StrCat(layer.channels),
                    drift == figures.sums.drift.end()
                        ? "none yet"
                        : absl::StrFormat("%.3f", drift->second)});
  }
  if (rows.empty()) return "";
  return Table("Batch norm", {"Layer", "Channels", "Drift"}, rows);
}

}  // namespace

std::string EscapedHtml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"},
                                    {"<", "&lt;"},
                                    {">", "&gt;"},
                                    {"\"", "&quot;"},
                                    {"'", "&#39;"}});
}

std::string StatusTables(const RunFigures& figures) {
  return absl::StrCat(
      "<p id=\"plain-state\">", EscapedHtml(figures.status.state), "</p>\n",
      RunTable(figures), WorkersTable(figures), VerdictsTable(figures),
      PolicyTable(figures), EventsTable(figures), LayersTable(figures),
      ShardsTable(figures));
}

std::string PageWithTables(absl::string_view page, const RunFigures& figures) {
  // StrReplaceAll would also replace markers inside text from outside.
  const size_t at = page.find(kMarker);
  if (at == absl::string_view::npos) return std::string(page);
  return absl::StrCat(page.substr(0, at), StatusTables(figures),
                      page.substr(at + kMarker.size()));
}

}  // namespace cohort
