#include "server/core/evaluation/pinned_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/ledger/step_shares.h"
#include "server/core/statistics/moments_checks.h"

namespace cohort {
namespace {

// The samples that moments are collected over. Always the same, so that two
// versions of the weights are described by the same data.
constexpr int64_t kCollectionEpoch = 0;

Score ScoreOf(const EvaluationRecord& record) {
  Score score{.version = record.version,
              .epochs = record.epochs,
              .loss = record.loss()};
  const EvaluationSums& sums = record.sums();
  if (sums.labels > 0) score.accuracy = Accuracy(sums);
  score.mean_iou = MeanIou(sums);
  return score;
}

// The sets with those of kAfter, if there are any, replaced.
StatisticsSets Replaced(const StatisticsSets& held, const StatisticsSet& by) {
  StatisticsSets sets = held;
  for (StatisticsSet& set : sets) {
    if (set.kind == by.kind) set = by;
  }
  return sets;
}

}  // namespace

std::string PinnedWork::CollectingText() const {
  return absl::StrCat("collecting batch-norm moments, ", collection_->folded(),
                      " of ", collection_->batches(), " batches");
}

absl::StatusOr<SharedVersion> PinnedWork::Read(Version version) const {
  // First, for the same version may have got new statistics since.
  SharedVersion pinned = evaluations_.Pinned(version);
  if (pinned != nullptr) return pinned;
  if (collecting() && collection_->snapshot()->version == version) {
    return collection_->snapshot();
  }
  if (version == model_.version()) return model_.current();
  return absl::OutOfRangeError(absl::StrCat(
      "got version ", version.value(), ", want ", model_.version().value(),
      " (the newest) or a pinned version"));
}

bool PinnedWork::EndsWithCollection() const {
  const PolicyOptions& policy = settings_.policy();
  if (!model_.TracksStatistics()) return false;
  // A drained run ends soon: it collects only what it exports.
  if (phase_.draining()) {
    return policy.statistics.front() == StatisticsKind::kAfter;
  }
  return policy.Keeps(StatisticsKind::kAfter);
}

void PinnedWork::StartEvaluation(const SharedVersion& snapshot,
                                 EvaluationBook::Plan plan) {
  plan.test_samples = model_.model()->plan.test_samples;
  // After a restart no rank is back yet.
  plan.shards = phase_.started() ? std::max(ranks_.live(), 1)
                                 : settings_.options().workers;
  evaluations_.Start(snapshot, plan);
}

void PinnedWork::EvaluateEpoch(int64_t epochs, bool training_done) {
  // Conclude evaluates the last version, with all kinds.
  if (training_done && EndsWithCollection()) return;
  EvaluateAllKinds(epochs);
}

void PinnedWork::EvaluateAllKinds(int64_t epochs) {
  const StatisticsSets& sets = *model_.current()->statistics;
  EvaluationBook::Plan plan{.epochs = epochs};
  for (const StatisticsSet& set : sets) {
    if (set.Describes(model_.version())) plan.kinds.push_back(set.kind);
  }
  // Without moving statistics all kinds are the same, but for the average of
  // the weights.
  if (!model_.TracksStatistics()) {
    plan.kinds = {sets.front().kind};
    if (FindSet(sets, StatisticsKind::kAverage) != nullptr) {
      plan.kinds.push_back(StatisticsKind::kAverage);
    }
  }
  StartEvaluation(model_.current(), std::move(plan));
}

bool PinnedWork::Conclude(Turn& turn) {
  if (concluded_ || !EndsWithCollection()) return true;
  if (collecting()) return false;
  const StatisticsSet* set =
      FindSet(*model_.current()->statistics, StatisticsKind::kAfter);
  const bool collected =
      set->Describes(model_.version()) || uncollectable_ == model_.version();
  if (!collected) {
    // An elastic cohort may have no worker that could.
    if (BatchSizes().empty()) return false;
    StartCollection(turn);
    return false;
  }
  // There is one evaluation of a version at a time.
  if (evaluations_.Pinned(model_.version()) != nullptr) return false;
  concluded_ = true;
  EvaluateAllKinds(ledger_.cursor.epoch());
  return true;
}

std::vector<int64_t> PinnedWork::BatchSizes() const {
  std::vector<int64_t> batch_sizes;
  for (const Worker& worker : ranks_.all()) {
    if (worker.batch_size > 0) batch_sizes.push_back(worker.batch_size);
  }
  return batch_sizes;
}

void PinnedWork::StartCollection(Turn& turn) {
  std::vector<int64_t> batch_sizes = BatchSizes();
  const StepShares shares =
      ShareStep(batch_sizes, settings_.policy().global_batch);
  for (size_t i = 0; i < batch_sizes.size(); ++i) {
    batch_sizes[i] = SamplesOfBatch(shares, i);
  }
  const std::vector<IndexRange> batches =
      CollectionBatches({.train_samples = model_.model()->plan.train_samples,
                         .batch_sizes = std::move(batch_sizes),
                         .global_normalization = settings_.global(),
                         .group_size = settings_.policy().normalization_group,
                         .batches_max = settings_.policy().precise_batches});
  turn.Log(absl::StrCat("collecting batch-norm moments of ", batches.size(),
                        " batches, ", batches.front().size(),
                        " samples each, at step ", model_.version().value()));
  collection_.emplace(model_.current(), batches, model_.batch_norms().size());
}

void PinnedWork::FinishCollection(bool training_done, Turn& turn) {
  const MomentsCollection collection = *std::move(collection_);
  collection_.reset();
  const Version version = collection.snapshot()->version;
  const StatisticsSet* held =
      FindSet(*model_.current()->statistics, StatisticsKind::kAfter);
  if (held == nullptr) {
    turn.Log(absl::StrCat(
        "the moments of step ", version.value(),
        " are dropped: the policy no longer keeps 'after' statistics"));
    return;
  }
  if (collection.nonfinite().has_value()) {
    const MomentsCollection::Nonfinite& where = *collection.nonfinite();
    uncollectable_ = version;
    turn.Warn(absl::StrCat(
        "the 'after' statistics are unchanged: rank ", where.rank.value(),
        ": moments of ",
        model_.batch_norms()[static_cast<size_t>(where.layer)].name,
        " are not finite in batch ", where.batch, " at step ",
        version.value()));
    return;
  }
  StatisticsSet set = *held;
  set.collected = version;
  collection.Write(model_.batch_norms(), set.layers);
  const std::optional<int32_t> overflow = FirstOverflow(set.layers);
  if (overflow.has_value()) {
    uncollectable_ = version;
    turn.Warn(absl::StrCat(
        "the 'after' statistics are unchanged: combined moments of ",
        model_.batch_norms()[static_cast<size_t>(*overflow)].name,
        " are not finite at step ", version.value()));
    return;
  }
  const ModelVersion& newest = *model_.current();
  model_.Publish(WithSets(newest, Replaced(*newest.statistics, set)));
  turn.Log(absl::StrCat("the 'after' statistics now come from step ",
                        version.value(), ", over ", collection.batches(),
                        " batches"));
  // Conclude evaluates what is left at the end of the run.
  if (training_done) return;
  StartEvaluation(WithSets(*collection.snapshot(),
                           Replaced(*collection.snapshot()->statistics, set)),
                  {.epochs = ledger_.cursor.epoch(),
                   .on_request = true,
                   .kinds = {set.kind}});
}

absl::StatusOr<CollectionAnswer> PinnedWork::Collect(bool training_done,
                                                     Turn& turn) {
  COHORT_RETURN_IF_ERROR(phase_.CheckNotOver());
  if (!phase_.started()) {
    return absl::FailedPreconditionError(
        "training has not started, so no worker can compute the statistics");
  }
  const StatisticsSets& sets = *model_.current()->statistics;
  if (FindSet(sets, StatisticsKind::kAfter) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--bn_statistics: got ", StatisticsNames(settings_.policy().statistics),
        ", want a list with after to collect its statistics"));
  }
  if (!model_.TracksStatistics()) {
    return absl::FailedPreconditionError(
        "the model has no batch-norm layer with moving statistics");
  }
  if (!collecting()) {
    if (training_done) {
      return absl::FailedPreconditionError(
          "training is done; the run collects the statistics itself before it "
          "ends");
    }
    if (BatchSizes().empty()) {
      return absl::FailedPreconditionError(
          "no worker is there to compute the statistics; start one");
    }
    StartCollection(turn);
  }
  return CollectionAnswer{.version = collection_->snapshot()->version,
                          .batches = collection_->batches()};
}

std::optional<Assignment> PinnedWork::Next(Rank rank, bool may_collect) {
  Assignment next;
  const std::optional<EvaluationBook::Shard> shard = evaluations_.Take();
  if (shard.has_value()) {
    shards_[rank] = *shard;
    next.kind = AssignmentKind::kEvaluate;
    next.version = shard->version;
    next.range = shard->range;
    next.split = DataSplit::kTest;
    next.statistics = std::string(StatisticsName(shard->statistics));
    next.global_normalization = settings_.global();
    return next;
  }
  if (!collecting() || !may_collect) return std::nullopt;
  const std::optional<MomentsCollection::Shard> batch = collection_->Take();
  if (!batch.has_value()) return std::nullopt;
  batches_[rank] = *batch;
  next.kind = AssignmentKind::kCollectMoments;
  next.version = collection_->snapshot()->version;
  next.data_epoch = kCollectionEpoch;
  next.range = batch->range;
  return next;
}

void PinnedWork::Return(Rank rank) {
  RankWork& work = ranks_[rank].work;
  if (!work.busy() || work.trains()) return;
  work.End();
  const auto shard = shards_.find(rank);
  if (shard != shards_.end()) {
    evaluations_.Return(shard->second);
    shards_.erase(shard);
  }
  const auto batch = batches_.find(rank);
  if (batch != batches_.end()) {
    collection_->Return(batch->second);
    batches_.erase(batch);
  }
}

absl::Status PinnedWork::FinishEvaluation(Rank rank, const EvaluationSums& sums,
                                          Effects& out) {
  const EvaluationBook::Shard shard = shards_.at(rank);
  COHORT_RETURN_IF_ERROR(evaluations_.CheckFits(shard, sums));
  ranks_[rank].work.End();
  shards_.erase(rank);
  std::optional<EvaluationRecord> record = evaluations_.Finish(shard, sums);
  if (!record.has_value()) return absl::OkStatus();
  if (!record->on_request) {
    last_evaluation_ = record;
    // Several may be in progress under other policies than sync.
    if (!score_.has_value() || record->version >= score_->version) {
      score_ = ScoreOf(*record);
    }
  }
  out.push_back(effect::Evaluated{.record = *std::move(record)});
  return absl::OkStatus();
}

absl::Status PinnedWork::CheckCollected(
    const std::vector<CallMoments>& calls) const {
  const std::vector<BatchNormSpec>& layers = model_.batch_norms();
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallMoments& call = calls[i];
    COHORT_RETURN_IF_ERROR(CheckCallMoments(call, layers));
    COHORT_RETURN_IF_ERROR(CheckSpread(
        layers[static_cast<size_t>(call.layer)].name, call.moments));
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

void PinnedWork::FinishBatch(Rank rank, std::vector<CallMoments> calls,
                             bool training_done, Turn& turn) {
  ranks_[rank].work.End();
  const MomentsCollection::Shard batch = batches_.at(rank);
  batches_.erase(rank);
  collection_->Finish(batch, rank, std::move(calls));
  if (collection_->complete()) FinishCollection(training_done, turn);
}

}  // namespace cohort
