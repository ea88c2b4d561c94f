#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/ctl/status_text.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

absl::StatusOr<int32_t> RankOf(const Arguments& arguments) {
  const std::optional<std::string> text = arguments.Value("rank");
  if (!text.has_value()) {
    return absl::NotFoundError(
        "got no --rank, want that of the worker to evict\n`cohortctl workers "
        "list` shows them");
  }
  int32_t rank = 0;
  if (absl::SimpleAtoi(*text, &rank) && rank >= 0) return rank;
  return absl::InvalidArgumentError(
      absl::StrCat("--rank: got '", *text, "', want 0 or more"));
}

}  // namespace

absl::Status RunWorkersList(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const v1::Status status, context.server.GetStatus());
  context.io.out << (context.json ? WorkersJson(status) + "\n"
                                  : WorkersText(status, context.io.color));
  return absl::OkStatus();
}

absl::Status RunWorkersEvict(Context& context) {
  v1::EvictRequest request;
  COHORT_ASSIGN_OR_RETURN(const int32_t rank, RankOf(context.arguments));
  request.set_rank(rank);
  request.set_reason(context.arguments.Value("reason").value_or(""));
  const absl::StatusOr<v1::EvictReply> reply = context.server.Evict(request);
  constexpr absl::string_view kNext =
      "`cohortctl workers list` shows who holds which rank";
  COHORT_RETURN_IF_ERROR(WithNext(
      WithNext(reply.status(), absl::StatusCode::kInvalidArgument, kNext),
      absl::StatusCode::kFailedPrecondition, kNext));
  if (context.json) {
    context.io.out << nlohmann::ordered_json{{"rank", rank},
                                             {"version", reply->version()}}
                          .dump()
                   << "\n";
    return absl::OkStatus();
  }
  context.io.out << "worker " << rank << " evicted at version "
                 << reply->version() << "\n";
  context.io.err << "`cohortctl status` tells whether the run waits for a "
                    "replacement"
                 << std::endl;
  return absl::OkStatus();
}

}  // namespace cohort
