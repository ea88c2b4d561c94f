#include <ostream>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/status_text.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(200);

constexpr FlagSpec kRankFlag = {"rank", "N", "rank of the worker"};
constexpr FlagSpec kReasonFlag = {"reason", "TEXT",
                                  "text for the server's log"};

absl::StatusOr<int32_t> RankOf(const Arguments& arguments) {
  if (!arguments.Has("rank")) {
    return absl::NotFoundError(
        "got no --rank, want that of the worker\n`cohortctl workers "
        "list` shows them");
  }
  return NumberOf(arguments, "rank", 0, {.min = 0});
}

// The incarnation that holds a rank; 0 if the rank is vacant.
int64_t HolderOf(const v1::Status& status, int32_t rank) {
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.rank() != rank) continue;
    return worker.state() == "vacant" ? 0 : worker.incarnation();
  }
  return 0;
}

// Returns the version at which the incarnation that holds the rank has left.
absl::StatusOr<int64_t> AwaitLeave(Context& context, int32_t rank,
                                   int64_t holder) {
  const Instant deadline = context.io.clock.Now() + context.timeout;
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(const v1::Status status,
                            context.server.GetStatus());
    if (HolderOf(status, rank) != holder || status.ended()) {
      return status.version();
    }
    if (context.io.clock.Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "worker ", rank, " is still there after ",
          absl::FormatDuration(context.timeout),
          "\nIt leaves once it has done its step; `cohortctl workers list` "
          "tells when"));
    }
    if (!context.io.pause(kLookInterval)) {
      return absl::CancelledError(absl::StrCat(
          "interrupted; worker ", rank, " leaves once it has done its step"));
    }
  }
}

// Takes the rank from a worker, at once or after its current step.
absl::StatusOr<v1::EvictReply> Evict(Context& context, int32_t rank,
                                     bool after_step) {
  v1::EvictRequest request;
  request.set_rank(rank);
  request.set_reason(context.arguments.Value("reason").value_or(""));
  request.set_after_step(after_step);
  const absl::StatusOr<v1::EvictReply> reply = context.server.Evict(request);
  constexpr absl::string_view kNext =
      "`cohortctl workers list` shows who holds which rank";
  COHORT_RETURN_IF_ERROR(WithNext(
      WithNext(reply.status(), absl::StatusCode::kInvalidArgument, kNext),
      absl::StatusCode::kFailedPrecondition, kNext));
  return reply;
}

// `what` follows the rank in the sentence, as in "evicted".
void TellGone(Context& context, int32_t rank, absl::string_view what,
              int64_t version) {
  if (context.json) {
    context.io.out << JsonLine({{"rank", rank}, {"version", version}});
    return;
  }
  context.io.out << "worker " << rank << " " << what << " at step " << version
                 << "\n";
  context.io.err << "`cohortctl status` tells whether the run waits for a "
                    "replacement"
                 << std::endl;
}

absl::Status RunWorkersList(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const v1::Status status, context.server.GetStatus());
  context.io.out << (context.json ? WorkersJson(status)
                                  : WorkersText(status, context.io.color));
  return absl::OkStatus();
}

absl::Status RunWorkersDrain(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const int32_t rank, RankOf(context.arguments));
  COHORT_ASSIGN_OR_RETURN(const v1::Status before, context.server.GetStatus());
  COHORT_RETURN_IF_ERROR(Evict(context, rank, /*after_step=*/true).status());
  COHORT_ASSIGN_OR_RETURN(const int64_t version,
                          AwaitLeave(context, rank, HolderOf(before, rank)));
  TellGone(context, rank, "has left", version);
  return absl::OkStatus();
}

absl::Status RunWorkersEvict(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const int32_t rank, RankOf(context.arguments));
  COHORT_ASSIGN_OR_RETURN(const v1::EvictReply reply,
                          Evict(context, rank, /*after_step=*/false));
  TellGone(context, rank, "evicted", reply.version());
  return absl::OkStatus();
}

}  // namespace

Verb WorkersListVerb() {
  return {.name = "workers list",
          .summary = "lists ranks and workers, and when each last responded",
          .examples = {"cohortctl workers list"},
          .run = &RunWorkersList};
}

Verb WorkersDrainVerb() {
  return {.name = "workers drain",
          .summary = "lets a worker finish its step and leave",
          .flags = {kRankFlag, kReasonFlag},
          .examples = {"cohortctl workers drain --rank=1"},
          .run = &RunWorkersDrain};
}

Verb WorkersEvictVerb() {
  return {.name = "workers evict",
          .summary = "ends a worker's incarnation, as if the process had died",
          .flags = {kRankFlag, kReasonFlag},
          .examples = {"cohortctl workers evict --rank=1"},
          .run = &RunWorkersEvict};
}

}  // namespace cohort
