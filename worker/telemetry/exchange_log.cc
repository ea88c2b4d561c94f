#include "worker/telemetry/exchange_log.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checksum.h"
#include "common/exchange_names.h"
#include "common/formats/file_system.h"
#include "common/log/log.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

std::string SumOf(const ByteRope& bytes) {
  return bytes.size_bytes() == 0 ? "" : ChecksumText(bytes.Checksum());
}

Json SumsOf(const std::vector<ByteRope>& parts) {
  Json sums = Json::array();
  for (const ByteRope& part : parts) sums.push_back(SumOf(part));
  return sums;
}

void Describe(const Assignment& assignment, Json& line) {
  line["kind"] = AssignmentName(assignment.kind);
  if (assignment.kind != AssignmentKind::kTrain) return;
  line["sequence"] = assignment.sequence.value();
  line["attempt"] = assignment.attempt.value();
  line["version"] = assignment.version.value();
  Json members = Json::array();
  for (Rank rank : assignment.members) members.push_back(rank.value());
  line["members"] = std::move(members);
  line["epoch"] = assignment.data_epoch;
  line["range"] = {assignment.range.begin, assignment.range.end};
}

}  // namespace

// One line under construction.
class ExchangeLog::Line {
 public:
  explicit Line(absl::string_view event, absl::Time begin) {
    json["event"] = std::string(event);
    json["begin_us"] = absl::ToUnixMicros(begin);
  }

  Json json;
};

absl::StatusOr<std::unique_ptr<ExchangeLog>> ExchangeLog::Open(
    const std::string& path, Client& client) {
  COHORT_RETURN_IF_ERROR(CheckNoPipe(path));
  std::unique_ptr<ExchangeLog> log(new ExchangeLog(client));
  log->file_.open(path, std::ios::binary | std::ios::app);
  if (!log->file_) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return log;
}

ExchangeLog::Line ExchangeLog::Begin(absl::string_view event) {
  return Line(event, absl::Now());
}

// The incarnation is read at the end of a call: a call that reconnects gets
// its answer as the new one.
void ExchangeLog::Write(Line line) {
  line.json["end_us"] = absl::ToUnixMicros(absl::Now());
  line.json["rank"] = rank_.value();
  line.json["incarnation"] = next().incarnation().value();
  if (failed_) return;
  file_ << line.json.dump(-1, ' ', false, Json::error_handler_t::replace)
        << '\n'
        << std::flush;
  if (file_) return;
  failed_ = true;
  Log(LogLevel::kError,
      "the log of the exchange cannot be written and ends here");
}

absl::StatusOr<Membership> ExchangeLog::Join() {
  Line line = Begin("join");
  absl::StatusOr<Membership> membership = next().Join();
  if (membership.ok()) {
    rank_ = membership->rank;
    line.json["run"] = membership->run_id;
    line.json["version"] = membership->version.value();
  } else {
    line.json["error"] = membership.status().ToString();
  }
  Write(std::move(line));
  return membership;
}

absl::StatusOr<Registration> ExchangeLog::Register(
    const ModelLayout& layout, const RunPlan& plan,
    absl::Span<const absl::Span<const float>> values,
    absl::Span<const LayerStatistics> statistics) {
  absl::StatusOr<Registration> registration =
      next().Register(layout, plan, values, statistics);
  if (registration.ok()) gradients_.resize(registration->partitions.size());
  return registration;
}

absl::StatusOr<Assignment> ExchangeLog::NextAssignment() {
  Line line = Begin("assignment");
  absl::StatusOr<Assignment> assignment = next().NextAssignment();
  if (assignment.ok()) {
    Describe(*assignment, line.json);
    key_ = {.sequence = assignment->sequence, .attempt = assignment->attempt};
  } else {
    line.json["error"] = assignment.status().ToString();
  }
  Write(std::move(line));
  return assignment;
}

absl::StatusOr<PulledVersion> ExchangeLog::Pull(const PullOptions& options) {
  Line line = Begin("pull");
  line.json["requested"] = nullptr;
  if (options.version.has_value()) {
    line.json["requested"] = options.version->value();
  }
  line.json["statistics"] = options.statistics_kind;
  absl::StatusOr<PulledVersion> pulled = next().Pull(options);
  if (pulled.ok()) {
    line.json["version"] = pulled->version.value();
    line.json["weights"] = SumsOf(pulled->weights);
  } else {
    line.json["error"] = pulled.status().ToString();
  }
  Write(std::move(line));
  return pulled;
}

absl::Status ExchangeLog::OpenPush(const PushOpening& opening) {
  opening_ = opening;
  gradients_.assign(gradients_.size(), "");
  return next().OpenPush(opening);
}

absl::Status ExchangeLog::SendGradient(
    int32_t partition, ByteRope gradient,
    absl::Span<const int32_t> absent_slices) {
  const auto at = static_cast<size_t>(partition);
  if (at < gradients_.size()) gradients_[at] = SumOf(gradient);
  return next().SendGradient(partition, std::move(gradient), absent_slices);
}

void ExchangeLog::WritePush(absl::string_view event) {
  Line push = Begin(event);
  push.json["sequence"] = key_.sequence.value();
  push.json["attempt"] = key_.attempt.value();
  push.json["version"] = opening_.version.value();
  push.json["samples"] = opening_.samples;
  push.json["gradients"] = gradients_;
  Write(std::move(push));
}

absl::StatusOr<std::vector<ByteRope>> ExchangeLog::AwaitUpdate() {
  WritePush("update");
  return next().AwaitUpdate();
}

absl::StatusOr<PushResult> ExchangeLog::ClosePush(const PushClosing& closing) {
  WritePush("push");
  Line line = Begin("verdict");
  absl::StatusOr<PushResult> result = next().ClosePush(closing);
  if (result.ok()) {
    WriteVerdict(std::move(line), key_, result->verdict, result->weights);
  } else {
    line.json["sequence"] = key_.sequence.value();
    line.json["attempt"] = key_.attempt.value();
    line.json["error"] = result.status().ToString();
    Write(std::move(line));
  }
  return result;
}

absl::StatusOr<PushVerdict> ExchangeLog::RepeatClosing(
    const PushKey& key, const PushClosing& closing) {
  Line line = Begin("verdict");
  absl::StatusOr<PushVerdict> verdict = next().RepeatClosing(key, closing);
  if (verdict.ok()) WriteVerdict(std::move(line), key, *verdict, {});
  return verdict;
}

void ExchangeLog::WriteVerdict(Line line, const PushKey& key,
                               const PushVerdict& verdict,
                               const std::vector<ByteRope>& weights) {
  line.json["sequence"] = key.sequence.value();
  line.json["attempt"] = key.attempt.value();
  line.json["verdict"] = VerdictName(verdict.verdict);
  line.json["version"] = verdict.version.value();
  line.json["duplicate"] = verdict.duplicate;
  line.json["staleness"] = verdict.staleness_versions;
  line.json["weights"] = SumsOf(weights);
  Write(std::move(line));
}

void ExchangeLog::Leave(const Departure& departure) {
  Line line = Begin("leave");
  line.json["reason"] = departure.reason;
  Write(std::move(line));
  next().Leave(departure);
}

}  // namespace cohort
