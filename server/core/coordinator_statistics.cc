// Evaluation, and collecting precise statistics, of the coordinator.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/measures.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"
#include "server/core/moments_checks.h"

namespace cohort {
namespace {

// The samples that moments are collected over. Always the same, so that two
// versions of the weights are described by the same data.
constexpr int64_t kCollectionEpoch = 0;

// The sets with those of kAfter, if there are any, replaced.
StatisticsSets Replaced(const StatisticsSets& held, const StatisticsSet& by) {
  StatisticsSets sets = held;
  for (StatisticsSet& set : sets) {
    if (set.kind == by.kind) set = by;
  }
  return sets;
}

}  // namespace

void Coordinator::CountStatistics(int64_t StatisticsCounts::*what,
                                  int64_t pushes) {
  // Precise statistics are collected after training, not from pushes.
  const std::vector<StatisticsKind>& kinds = settings_.policy().statistics;
  const bool from_pushes =
      std::any_of(kinds.begin(), kinds.end(), &MovesInTraining);
  if (from_pushes && model_.TracksStatistics())
    ledger_.statistics_counts.*what += pushes;
}

bool Coordinator::EndsWithCollection() const {
  const std::vector<StatisticsKind>& kinds = settings_.policy().statistics;
  if (!model_.TracksStatistics()) return false;
  // A drained run ends soon: it collects only what it exports.
  if (ledger_.draining()) return kinds.front() == StatisticsKind::kAfter;
  return std::find(kinds.begin(), kinds.end(), StatisticsKind::kAfter) !=
         kinds.end();
}

void Coordinator::StartEvaluation(const SharedSnapshot& snapshot,
                                  EvaluationBook::Plan plan) {
  plan.test_samples = model_.model()->plan.test_samples;
  // After a restart nobody is back yet.
  plan.shards =
      started_ ? std::max(ranks_.live(), 1) : settings_.options().workers;
  evaluations_.Start(snapshot, plan);
}

void Coordinator::EvaluateEpoch(int64_t epochs) {
  // ConcludeStatistics evaluates the last version, with all kinds.
  if (TrainingDone() && EndsWithCollection()) return;
  EvaluateAllKinds(epochs);
}

void Coordinator::EvaluateAllKinds(int64_t epochs) {
  const StatisticsSets& sets = *model_.current()->statistics;
  EvaluationBook::Plan plan{.epochs = epochs};
  for (const StatisticsSet& set : sets) {
    if (set.Describes(model_.version())) plan.kinds.push_back(set.kind);
  }
  // Without moving statistics all kinds are the same.
  if (!model_.TracksStatistics()) plan.kinds = {sets.front().kind};
  StartEvaluation(model_.current(), std::move(plan));
}

bool Coordinator::ConcludeStatistics(Effects& out) {
  if (concluded_ || !EndsWithCollection()) return true;
  if (collection_.has_value()) return false;
  const StatisticsSet* set =
      FindSet(*model_.current()->statistics, StatisticsKind::kAfter);
  const bool collected =
      set->Describes(model_.version()) || uncollectable_ == model_.version();
  if (!collected) {
    StartCollection(out);
    return false;
  }
  concluded_ = true;
  EvaluateAllKinds(ledger_.cursor().epoch());
  return true;
}

void Coordinator::StartCollection(Effects& out) {
  std::vector<int64_t> batch_sizes;
  for (const Worker& worker : ranks_.all()) {
    if (worker.batch_size > 0) batch_sizes.push_back(worker.batch_size);
  }
  std::vector<IndexRange> batches =
      CollectionBatches({.train_samples = model_.model()->plan.train_samples,
                         .batch_sizes = std::move(batch_sizes),
                         .global_normalization = settings_.global(),
                         .group_size = settings_.policy().normalization_group,
                         .batches_max = settings_.policy().precise_batches});
  out.push_back(
      effect::Log{.text = absl::StrCat(
                      "collecting batch-norm moments of ", batches.size(),
                      " batches, ", batches.front().size(),
                      " samples each, at step ", model_.version().value())});
  collection_.emplace(next_collection_++, model_.current(), std::move(batches),
                      model_.batch_norms().size());
}

void Coordinator::FinishCollection(Effects& out) {
  const MomentsCollection collection = *std::move(collection_);
  collection_.reset();
  const Version version = collection.snapshot()->version;
  const StatisticsSet* held =
      FindSet(*model_.current()->statistics, StatisticsKind::kAfter);
  if (held == nullptr) {
    out.push_back(effect::Log{
        .text = absl::StrCat("the moments of step ", version.value(),
                             " are dropped: the policy keeps no statistics "
                             "'after' any more")});
    return;
  }
  if (collection.nonfinite().has_value()) {
    const MomentsCollection::Nonfinite& where = *collection.nonfinite();
    uncollectable_ = version;
    out.push_back(effect::Log{
        .severity = Severity::kWarning,
        .text = absl::StrCat(
            "the statistics 'after' stay as they were: rank ",
            where.rank.value(), ": moments of ",
            model_.batch_norms()[static_cast<size_t>(where.layer)].name,
            " are not finite in batch ", where.batch, " at step ",
            version.value())});
    return;
  }
  StatisticsSet set = *held;
  set.collected = version;
  collection.Write(model_.batch_norms(), set.layers);
  model_.PublishStatistics(Replaced(*model_.current()->statistics, set));
  out.push_back(
      effect::Log{.text = absl::StrCat("statistics 'after' are those of step ",
                                       version.value(), " over ",
                                       collection.batches(), " batches")});
  // ConcludeStatistics evaluates what is left at the end of the run.
  if (TrainingDone()) return;
  StartEvaluation(WithSets(*collection.snapshot(),
                           Replaced(*collection.snapshot()->statistics, set)),
                  {.epochs = ledger_.cursor().epoch(),
                   .on_request = true,
                   .kinds = {set.kind}});
}

absl::StatusOr<CollectionAnswer> Coordinator::CollectStatistics(
    const std::string& run_id, Instant now, Effects& out) {
  if (!run_id.empty() && run_id != settings_.options().run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("got run ", run_id, ", want ", settings_.options().run_id,
                     ": this server holds another run"));
  }
  if (!started_ || ledger_.ended()) {
    return absl::FailedPreconditionError(
        ledger_.ended()
            ? absl::StrCat("the run is over: ", ledger_.end_reason())
            : "training has not started: there is nobody to compute");
  }
  if (FindSet(*model_.current()->statistics, StatisticsKind::kAfter) ==
      nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--bn_statistics: got ", StatisticsNames(settings_.policy().statistics),
        ", want after among them to collect it"));
  }
  if (!model_.TracksStatistics()) {
    return absl::FailedPreconditionError(
        "the model has no batch-norm layer with moving statistics");
  }
  if (!collection_.has_value()) {
    if (TrainingDone()) {
      return absl::FailedPreconditionError(
          "training is done: the run collects by itself and ends");
    }
    StartCollection(out);
  }
  const CollectionAnswer answer{
      .version = collection_->snapshot()->version,
      .batches = collection_->batches(),
  };
  NotifyWaiting(now, out);
  return answer;
}

std::optional<Assignment> Coordinator::NextShard(Worker& worker) {
  Assignment next{.sequence = worker.next_sequence,
                  .policy_epoch = settings_.policy_epoch()};
  worker.shard = evaluations_.Take();
  if (worker.shard.has_value()) {
    next.kind = AssignmentKind::kEvaluate;
    next.version = worker.shard->version;
    next.range = worker.shard->range;
    next.split = DataSplit::kTest;
    next.statistics = std::string(StatisticsName(worker.shard->statistics));
    next.global_normalization = settings_.global();
  } else {
    if (collection_.has_value() && !HoldsUpIssuedStep(worker.rank)) {
      worker.batch = collection_->Take();
    }
    if (!worker.batch.has_value()) return std::nullopt;
    next.kind = AssignmentKind::kCollectMoments;
    next.version = collection_->snapshot()->version;
    next.data_epoch = kCollectionEpoch;
    next.range = worker.batch->range;
  }
  worker.next_sequence = worker.next_sequence.Next();
  return next;
}

bool Coordinator::HoldsUpIssuedStep(Rank rank) const {
  return IsMember(rank) && !round_->issued.empty() &&
         !round_->issued.contains(rank);
}

void Coordinator::ReturnShard(Worker& worker) {
  if (worker.shard.has_value()) evaluations_.Return(*worker.shard);
  if (worker.batch.has_value() && collection_.has_value()) {
    collection_->Return(*worker.batch);
  }
  worker.shard.reset();
  worker.batch.reset();
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
    const EvaluationBook::Shard shard = *worker->shard;
    COHORT_RETURN_IF_ERROR(evaluations_.CheckFits(shard, sums));
    worker->outstanding.reset();
    worker->shard.reset();
    std::optional<EvaluationRecord> record = evaluations_.Finish(shard, sums);
    if (record.has_value()) {
      if (!record->on_request) last_evaluation_ = record;
      out.push_back(effect::Evaluated{.record = *record});
    }
    Advance(now, out);
  }
  return NextForRank(sender.rank, now);
}

absl::Status Coordinator::CheckCollected(
    const std::vector<CallMoments>& calls) const {
  const std::vector<BatchNormSpec>& layers = model_.batch_norms();
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallMoments& call = calls[i];
    COHORT_RETURN_IF_ERROR(CheckCallMoments(call, layers));
    COHORT_RETURN_IF_ERROR(
        CheckSpread(layers[static_cast<size_t>(call.layer)], call.moments));
    const bool ascends =
        i == 0 || calls[i - 1].layer < call.layer ||
        (calls[i - 1].layer == call.layer && calls[i - 1].call < call.call);
    if (ascends) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "collected moments of ", layers[static_cast<size_t>(call.layer)].name,
        " call ", call.call, " are out of order"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Assignment> Coordinator::ReportMoments(
    const Sender& sender, Sequence sequence, std::vector<CallMoments> calls,
    Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  COHORT_RETURN_IF_ERROR(RequireRegistered(*worker));
  COHORT_RETURN_IF_ERROR(CheckCollected(calls));
  COHORT_ASSIGN_OR_RETURN(
      const bool current,
      ReportsOutstanding(*worker, AssignmentKind::kCollectMoments, sequence));
  if (current) {
    const MomentsCollection::Shard batch = *worker->batch;
    worker->outstanding.reset();
    worker->batch.reset();
    if (collection_.has_value()) {
      collection_->Finish(batch, worker->rank, std::move(calls));
      if (collection_->complete()) FinishCollection(out);
    }
    Advance(now, out);
  }
  return NextForRank(sender.rank, now);
}

}  // namespace cohort
