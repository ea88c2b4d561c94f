#include <ostream>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

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

absl::Status RunDrain(Context& context) {
  v1::DrainRequest request;
  request.set_reason(context.arguments.Value("reason").value_or(""));
  const absl::StatusOr<v1::DrainReply> reply = context.server.Drain(request);
  COHORT_RETURN_IF_ERROR(WithNext(reply.status(),
                                  absl::StatusCode::kFailedPrecondition,
                                  "`cohortctl status` tells how it ended"));
  COHORT_RETURN_IF_ERROR(
      PrintVersion(context, "draining since step ", reply->version(),
                   ": the run ends with the step in progress"));
  if (!context.json) {
    context.io.err << "`cohortctl status --watch` follows it to its end"
                   << std::endl;
  }
  return absl::OkStatus();
}

absl::Status RunCheckpointSave(Context& context) {
  const absl::StatusOr<v1::CheckpointReply> reply = context.server.Checkpoint();
  COHORT_RETURN_IF_ERROR(
      WithNext(reply.status(), absl::StatusCode::kFailedPrecondition,
               "checkpoints need a server with --checkpoint_dir=PATH and a "
               "worker that has registered its model"));
  return PrintVersion(context, "checkpoint of step ", reply->version(),
                      " is on disk");
}

absl::Status RunExport(Context& context) {
  const absl::StatusOr<v1::ExportReply> reply = context.server.Export();
  COHORT_RETURN_IF_ERROR(
      WithNext(reply.status(), absl::StatusCode::kFailedPrecondition,
               "exports need a server with --results_dir=PATH and a worker "
               "that has registered its model"));
  return PrintVersion(context, "model.safetensors of step ", reply->version(),
                      " is in the server's --results_dir");
}

absl::Status RunStatisticsCollect(Context& context) {
  const absl::StatusOr<v1::CollectStatisticsReply> reply =
      context.server.CollectStatistics();
  COHORT_RETURN_IF_ERROR(
      WithNext(reply.status(), absl::StatusCode::kFailedPrecondition,
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
      .flags = {{.name = "reason",
                 .value = "TEXT",
                 .help = "text for the server's log"}},
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
      .summary = "collects the moving statistics `after` over fixed weights",
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
