// Evaluation, and collecting precise statistics, of the coordinator.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"

namespace cohort {
void Coordinator::CountStatistics(int64_t StatisticsCounts::*what,
                                  int64_t pushes) {
  // Precise statistics are collected after training, not from pushes.
  const std::vector<StatisticsKind>& kinds = settings_.policy().statistics;
  const bool from_pushes =
      std::any_of(kinds.begin(), kinds.end(), &MovesInTraining);
  if (from_pushes && model_.TracksStatistics())
    ledger_.statistics_counts.*what += pushes;
}

absl::StatusOr<CollectionAnswer> Coordinator::CollectStatistics(
    const std::string& run_id, Instant now, Effects& out) {
  if (!run_id.empty() && run_id != settings_.options().run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("got run ", run_id, ", want ", settings_.options().run_id,
                     ": this server holds another run"));
  }
  if (!ledger_.started() || ledger_.ended()) {
    return absl::FailedPreconditionError(
        ledger_.ended()
            ? absl::StrCat("the run is over: ", ledger_.end_reason())
            : "training has not started: there is nobody to compute");
  }
  COHORT_ASSIGN_OR_RETURN(const CollectionAnswer answer,
                          pinned_.Collect(TrainingDone(), out));
  NotifyWaiting(now, out);
  return answer;
}

std::optional<Assignment> Coordinator::NextShard(Worker& worker) {
  std::optional<Assignment> next =
      pinned_.Next(worker.rank, !HoldsUpIssuedStep(worker.rank));
  if (!next.has_value()) return std::nullopt;
  next->sequence = worker.next_sequence;
  next->policy_epoch = settings_.policy_epoch();
  worker.next_sequence = worker.next_sequence.Next();
  return next;
}

bool Coordinator::HoldsUpIssuedStep(Rank rank) const {
  return IsMember(rank) && !round_->issued.empty() &&
         !round_->issued.contains(rank);
}

void Coordinator::ReturnShard(Worker& worker) {
  pinned_.Return(worker.rank);
  worker.outstanding.reset();
}

absl::StatusOr<bool> Coordinator::ReportsOutstanding(const Worker& worker,
                                                     AssignmentKind kind,
                                                     Sequence sequence) const {
  const std::optional<Assignment>& given = worker.outstanding;
  if (given.has_value() && given->sequence == sequence && given->kind == kind) {
    return true;
  }
  const bool other = given.has_value() && given->sequence == sequence;
  // The first is 1: a lower one is no old assignment either.
  if (!other && sequence >= Sequence(1) && sequence < worker.next_sequence) {
    return false;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no ", other ? "such report belongs to " : "", "assignment ",
                   sequence.value(), other ? " of" : " was given to", " rank ",
                   worker.rank.value()));
}

absl::StatusOr<Assignment> Coordinator::ReportEvaluation(
    const Sender& sender, Sequence sequence, const EvaluationSums& sums,
    Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  COHORT_RETURN_IF_ERROR(Validate(sums));
  COHORT_ASSIGN_OR_RETURN(
      const bool current,
      ReportsOutstanding(*worker, AssignmentKind::kEvaluate, sequence));
  if (current) {
    COHORT_RETURN_IF_ERROR(pinned_.FinishEvaluation(worker->rank, sums, out));
    worker->outstanding.reset();
    Advance(now, out);
  }
  return NextForRank(sender.rank, now);
}

absl::StatusOr<Assignment> Coordinator::ReportMoments(
    const Sender& sender, Sequence sequence, std::vector<CallMoments> calls,
    Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  COHORT_RETURN_IF_ERROR(RequireRegistered(*worker));
  COHORT_RETURN_IF_ERROR(pinned_.CheckCollected(calls));
  COHORT_ASSIGN_OR_RETURN(
      const bool current,
      ReportsOutstanding(*worker, AssignmentKind::kCollectMoments, sequence));
  if (current) {
    worker->outstanding.reset();
    pinned_.FinishBatch(worker->rank, std::move(calls), TrainingDone(), out);
    Advance(now, out);
  }
  return NextForRank(sender.rank, now);
}

}  // namespace cohort
