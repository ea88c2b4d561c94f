#include "server/ctl/status_words.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "server/ctl/byte_count.h"
#include "server/ctl/table.h"

namespace cohort {
namespace {

std::string Percent(double share) {
  return absl::StrFormat("%.1f %%", 100 * share);
}

// "0 93.1 %, 1 none".
std::string ClassIouText(const v1::Status& status) {
  std::string text;
  for (int c = 0; c < status.test_class_iou_size(); ++c) {
    const v1::ClassIou& of = status.test_class_iou(c);
    absl::StrAppend(&text, c > 0 ? ", " : "", c, " ",
                    of.has_iou() ? Percent(of.iou()) : "none");
  }
  return text;
}

}  // namespace

std::map<std::string, double> MeasuresOf(const v1::Status& status) {
  return {status.measures().begin(), status.measures().end()};
}

int64_t EpochNumber(const v1::Status& status) {
  if (status.epochs() < 1) return 0;
  return std::clamp<int64_t>(status.data_epoch(), 0, status.epochs() - 1) + 1;
}

std::string StepText(const v1::Status& status) {
  return status.local_steps() == 0
             ? absl::StrCat(status.version())
             : absl::StrCat(status.version(), " (", status.local_steps(),
                            " local steps)");
}

std::string RunText(const v1::Status& status) {
  const std::string id = Printable(status.run_id());
  const std::string name = Printable(status.run_name());
  if (name.empty()) return id;
  if (absl::StrContains(name, id)) return name;
  return absl::StrCat(name, " (", id, ")");
}

namespace {

// Not of the epoch: the run may end before its first epoch does (--max_steps),
// so the number of its samples says nothing about those of an epoch.
std::string ShareText(const v1::Status& status) {
  return absl::StrFormat(
      "%d %% of the run",
      std::min<int64_t>(100 * status.samples() / status.samples_total(), 100));
}

}  // namespace

std::string EpochText(const v1::Status& status) {
  const bool known = status.samples_total() > 0;
  if (status.epochs() == 0) {
    return known ? absl::StrCat("none, ", ShareText(status))
                 : "none, the data is the workers' own";
  }
  if (!known) return absl::StrCat("0 of ", status.epochs());
  return absl::StrCat(EpochNumber(status), " of ", status.epochs(), ", ",
                      ShareText(status));
}

std::string RateText(const v1::Status& status) {
  const double rate = status.samples_per_second();
  if (!(rate > 0)) return "0 images/s";
  const auto left =
      static_cast<double>(status.samples_total() - status.samples());
  std::string text = absl::StrFormat("%.0f images/s", rate);
  if (!status.ended() && left > 0) {
    absl::StrAppend(&text, ", ETA ", HumanDuration(absl::Seconds(left / rate)));
  }
  return text;
}

std::string PendingText(const v1::GetPolicyReply& policy) {
  std::string text =
      absl::StrJoin(std::map<std::string, std::string>(policy.pending().begin(),
                                                       policy.pending().end()),
                    " ", absl::PairFormatter("="));
  if (!policy.pending_reason().empty()) {
    absl::StrAppend(&text, ": ", policy.pending_reason());
  }
  return Printable(text);
}

std::string AgeText(const v1::WorkerStatus& worker) {
  if (worker.incarnation() == 0) return "never";
  return absl::StrCat(SecondsText(absl::Milliseconds(worker.silent_ms())),
                      " ago");
}

std::string CoresText(const v1::WorkerStatus& worker) {
  return worker.has_cpu_cores() ? absl::StrFormat("%.1f", worker.cpu_cores())
                                : "";
}

std::string MemoryText(const v1::WorkerStatus& worker) {
  return worker.has_resident_bytes() ? ByteCountText(worker.resident_bytes())
                                     : "";
}

std::string ShardStateText(const v1::ShardStatus& shard,
                           const v1::Status& status) {
  if (shard.connected()) return "connected";
  if (shard.generation() == 0) return "not there yet";
  const double now = static_cast<double>(status.server_unix_us()) / 1e6;
  return absl::StrCat(
      "gone for ",
      SecondsText(absl::Seconds(std::max(0.0, now - shard.since_unix_s()))));
}

std::string MissingShardsText(const v1::Status& status) {
  std::vector<std::string> missing;
  for (const v1::ShardStatus& shard : status.shards()) {
    if (shard.connected()) continue;
    const std::string name =
        absl::StrCat("data shard ", shard.shard(), " at ", shard.address());
    // Shard 0 keeps the cause with the name.
    const absl::string_view cause =
        absl::StripPrefix(shard.lost_because(), absl::StrCat(name, ": "));
    missing.push_back(
        Printable(absl::StrCat(name, ", ", ShardStateText(shard, status),
                               cause.empty() ? "" : ": ", cause)));
  }
  return absl::StrJoin(missing, "; ");
}

std::string HoldupText(const v1::ShardStatus& shard) {
  if (shard.prepare_seconds_total() <= 0) return "";
  return absl::StrFormat("%.0f %%", 100 * shard.holdup_seconds_total() /
                                        shard.prepare_seconds_total());
}

std::string ShardsLine(const v1::Status& status) {
  const auto connected =
      std::count_if(status.shards().begin(), status.shards().end(),
                    [](const v1::ShardStatus& s) { return s.connected(); });
  if (connected == status.shards_size()) {
    return absl::StrCat(connected, " connected");
  }
  return absl::StrCat(connected, " of ", status.shards_size(), " connected");
}

std::vector<std::pair<std::string, std::string>> TestMeasures(
    const v1::Status& status) {
  std::vector<std::pair<std::string, std::string>> measures;
  if (!status.has_test_accuracy()) return measures;
  const bool pixels = status.test_class_iou_size() > 0;
  if (pixels) {
    measures.emplace_back("test mIoU", status.has_test_miou()
                                           ? Percent(status.test_miou())
                                           : "none");
    measures.emplace_back(kIouByClass, ClassIouText(status));
  }
  measures.emplace_back(pixels ? "pixel accuracy" : "test accuracy",
                        Percent(status.test_accuracy()));
  if (status.has_test_top5_accuracy()) {
    measures.emplace_back("test top-5", Percent(status.test_top5_accuracy()));
  }
  return measures;
}

}  // namespace cohort
