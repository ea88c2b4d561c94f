#include "server/core/evaluation/moments_collection.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/moments_fold.h"
#include "server/core/statistics/moments_checks.h"

namespace cohort {

std::vector<IndexRange> CollectionBatches(const CollectionPlan& plan) {
  std::vector<int64_t> sizes = plan.batch_sizes;
  if (plan.global_normalization) {
    const size_t ranks = plan.batch_sizes.size();
    const size_t step =
        plan.group_size == 0 ? ranks : static_cast<size_t>(plan.group_size);
    sizes.clear();
    for (size_t i = 0; i < ranks; ++i) {
      if (i % step == 0) sizes.push_back(0);
      sizes.back() += plan.batch_sizes[i];
    }
  }
  COHORT_CHECK(!sizes.empty(), "no batch sizes");
  std::vector<IndexRange> batches;
  int64_t at = 0;
  while (static_cast<int64_t>(batches.size()) < plan.batches_max) {
    const int64_t size = sizes[batches.size() % sizes.size()];
    COHORT_CHECK(size >= 1, absl::StrCat("batch size ", size));
    if (at + size > plan.train_samples) break;
    batches.push_back({.begin = at, .end = at + size});
    at += size;
  }
  if (batches.empty())
    batches.push_back({.begin = 0, .end = plan.train_samples});
  return batches;
}

MomentsCollection::MomentsCollection(SharedVersion snapshot,
                                     const std::vector<IndexRange>& batches,
                                     size_t layers)
    : snapshot_(std::move(snapshot)),
      batches_(static_cast<int64_t>(batches.size())),
      totals_(layers) {
  for (const IndexRange& range : batches) {
    waiting_.push_back(
        {.index = static_cast<int64_t>(waiting_.size()), .range = range});
  }
}

std::optional<MomentsCollection::Shard> MomentsCollection::Take() {
  if (waiting_.empty()) return std::nullopt;
  Shard shard = waiting_.front();
  waiting_.pop_front();
  return shard;
}

void MomentsCollection::Return(const Shard& shard) {
  waiting_.push_front(shard);
}

void MomentsCollection::Finish(const Shard& shard, Rank rank,
                               std::vector<CallMoments> calls) {
  early_.emplace(shard.index, Batch{.rank = rank, .calls = std::move(calls)});
  // Only in batch order, so that arrival leaves no trace in the rounding.
  for (auto next = early_.begin();
       next != early_.end() && next->first == folded_;
       next = early_.erase(next)) {
    Fold(next->second);
    ++folded_;
  }
}

void MomentsCollection::Fold(const Batch& batch) {
  for (const CallMoments& call : batch.calls) {
    if (!IsUsable(ReducePhase::kForward, call.moments) &&
        !nonfinite_.has_value()) {
      nonfinite_ = {.rank = batch.rank, .layer = call.layer, .batch = folded_};
    }
    LayerTotal& total = totals_[static_cast<size_t>(call.layer)];
    if (call.moments.count > 0) ++total.calls;
    if (total.moments.first.empty()) {
      total.moments = call.moments;
    } else {
      total.moments = kernels::FoldForward({&total.moments, &call.moments});
    }
  }
}

void MomentsCollection::Write(const std::vector<BatchNormSpec>& layers,
                              std::vector<LayerStatistics>& statistics) const {
  for (size_t i = 0; i < totals_.size(); ++i) {
    const Moments& moments = totals_[i].moments;
    if (!layers[i].track_statistics || moments.count == 0) continue;
    LayerStatistics& to = statistics[i];
    to.num_batches_tracked = totals_[i].calls;
    to.mean = moments.first;
    const bool unbiased =
        layers[i].convention == StatisticsConvention::kPyTorch;
    const int64_t divisor = unbiased ? moments.count - 1 : moments.count;
    // One element has no unbiased variance: keep what is known.
    if (divisor == 0) continue;
    for (size_t c = 0; c < to.variance.size(); ++c) {
      to.variance[c] = moments.second[c] / static_cast<double>(divisor);
    }
  }
}

}  // namespace cohort
