#include <algorithm>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/status_words.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::Duration kStatusMax = absl::Seconds(2);

// Prints the one number that these requests return, within a sentence.
absl::Status PrintVersion(Context& context, absl::string_view before,
                          int64_t version, absl::string_view after) {
  if (context.json) {
    context.io.out << JsonLine({{"version", version}});
  } else {
    context.io.out << before << version << after << "\n";
  }
  return absl::OkStatus();
}

// The error of a request, with the next step. While a data shard is away the
// server refuses requests that need the whole model, or does not answer them in
// time, and the next step is to get the shard back. Otherwise it is `next`,
// after a refusal.
absl::Status RequestError(Context& context, const absl::Status& status,
                          absl::string_view next) {
  const bool refused = absl::IsFailedPrecondition(status);
  if (!refused && !absl::IsUnavailable(status)) return status;
  // The server names it if that is why it refuses.
  if (refused && absl::StrContains(status.message(), "data shard ")) {
    return WithNext(status, status.code(), kMissingShardHint);
  }
  // Short, because a server that cannot be reached has been waited for already.
  AdminClient server(context.server.target(),
                     std::min(context.timeout, kStatusMax));
  const absl::StatusOr<v1::Status> run = server.GetStatus();
  // A run that is over waits for none.
  const std::string missing =
      run.ok() && !run->ended() ? MissingShardsText(*run) : "";
  if (missing.empty()) {
    return WithNext(status, absl::StatusCode::kFailedPrecondition, next);
  }
  const std::string before =
      refused ? absl::StrCat(status.message(), "; ") : "";
  return absl::FailedPreconditionError(absl::StrCat(
      before, "the run waits for ", missing, "\n", kMissingShardHint));
}

// The consequence of a drain, and the next step (may be empty).
struct DrainOutlook {
  std::string text;
  std::string next;
};

// `status` is that after the drain was accepted at `version`.
DrainOutlook OutlookOf(const absl::StatusOr<v1::Status>& status,
                       int64_t version) {
  if (!status.ok()) {
    return {absl::StrCat("drained at step ", version,
                         ": the server does not answer any more, as after the "
                         "end of a run"),
            ""};
  }
  if (status->ended()) {
    return {
        absl::StrCat("the run is over at step ", status->version(),
                     status->version() == 0 ? ": training had not begun" : ""),
        ""};
  }
  return {
      absl::StrCat("draining since step ", version,
                   ": the run ends with the step in progress"),
      absl::StrCat(status->phase() == "waiting"
                       ? absl::StrCat("now: ", Printable(status->state()), "\n")
                       : "",
                   "`cohortctl watch` follows it to its end")};
}

absl::Status RunDrain(Context& context) {
  v1::DrainRequest request;
  request.set_reason(context.arguments.Value("reason").value_or(""));
  const absl::StatusOr<v1::DrainReply> reply = context.server.Drain(request);
  COHORT_RETURN_IF_ERROR(RequestError(context, reply.status(),
                                      "`cohortctl status` tells how it ended"));
  if (context.json) {
    context.io.out << JsonLine({{"version", reply->version()}});
    return absl::OkStatus();
  }
  const DrainOutlook outlook =
      OutlookOf(context.server.GetStatus(), reply->version());
  context.io.out << outlook.text << "\n";
  if (!outlook.next.empty()) context.io.err << outlook.next << std::endl;
  return absl::OkStatus();
}

absl::Status RunCheckpointSave(Context& context) {
  const absl::StatusOr<v1::CheckpointReply> reply = context.server.Checkpoint();
  COHORT_RETURN_IF_ERROR(
      RequestError(context, reply.status(),
                   "checkpoints need a server with --checkpoint_dir=PATH and a "
                   "worker that has registered its model"));
  return PrintVersion(context, "checkpoint of step ", reply->version(),
                      " is on disk");
}

absl::Status RunExport(Context& context) {
  const absl::StatusOr<v1::ExportReply> reply = context.server.Export();
  COHORT_RETURN_IF_ERROR(
      RequestError(context, reply.status(),
                   "exports need a server with --results_dir=PATH and a worker "
                   "that has registered its model"));
  return PrintVersion(context, "model.safetensors of step ", reply->version(),
                      " is in the server's --results_dir");
}

absl::Status RunStatisticsCollect(Context& context) {
  const absl::StatusOr<v1::CollectStatisticsReply> reply =
      context.server.CollectStatistics();
  COHORT_RETURN_IF_ERROR(
      RequestError(context, reply.status(),
                   "`cohortctl policy set --bn_statistics=sync,after` adds the "
                   "kind that is collected"));
  if (context.json) {
    context.io.out << JsonLine(
        {{"version", reply->version()}, {"batches", reply->batches()}});
    return absl::OkStatus();
  }
  context.io.out << "collecting statistics over " << reply->batches()
                 << " batches with the weights of step " << reply->version()
                 << "\n";
  context.io.err << "the server evaluates them when all are in" << std::endl;
  return absl::OkStatus();
}

}  // namespace

Verb RunDrainVerb() {
  return {
      .name = "run drain",
      .summary = "ends the run after the current step and writes its results",
      .flags = {{"reason", "TEXT", "text for the server's log"}},
      .examples = {"cohortctl run drain --reason='good enough'"},
      .run = &RunDrain};
}

Verb CheckpointSaveVerb() {
  return {.name = "checkpoint save",
          .summary = "writes a checkpoint and waits until it is on disk",
          .examples = {"cohortctl checkpoint save"},
          .run = &RunCheckpointSave};
}

Verb StatisticsCollectVerb() {
  return {
      .name = "statistics collect",
      .summary = "computes the `after` moving statistics over fixed weights",
      .examples = {"cohortctl statistics collect"},
      .run = &RunStatisticsCollect};
}

Verb ExportVerb() {
  return {.name = "export",
          .summary = "writes model.safetensors into the server's results_dir",
          .examples = {"cohortctl export"},
          .run = &RunExport};
}

}  // namespace cohort
