#include "server/core/evaluation.h"

#include <algorithm>
#include <utility>

namespace cohort {

void EvaluationBook::Start(SharedSnapshot snapshot, int64_t epochs,
                           int64_t test_samples, int32_t shards) {
  const Version version = snapshot->version;
  if (test_samples == 0 || open_.contains(version)) return;
  const auto count =
      static_cast<int32_t>(std::min<int64_t>(shards, test_samples));
  Open open{.snapshot = std::move(snapshot), .epochs = epochs};
  open.shards.resize(static_cast<size_t>(count));
  open_.emplace(version, std::move(open));
  for (int32_t i = 0; i < count; ++i) {
    waiting_.push_back({.version = version,
                        .index = i,
                        .range = {.begin = test_samples * i / count,
                                  .end = test_samples * (i + 1) / count}});
  }
}

std::optional<EvaluationBook::Shard> EvaluationBook::Take() {
  if (waiting_.empty()) return std::nullopt;
  Shard shard = waiting_.front();
  waiting_.pop_front();
  return shard;
}

void EvaluationBook::Return(const Shard& shard) { waiting_.push_front(shard); }

std::optional<EvaluationRecord> EvaluationBook::Finish(
    const Shard& shard, const EvaluationSums& sums) {
  const auto it = open_.find(shard.version);
  if (it == open_.end()) return std::nullopt;
  Open& open = it->second;
  std::optional<EvaluationSums>& slot =
      open.shards[static_cast<size_t>(shard.index)];
  if (slot.has_value()) return std::nullopt;
  slot = sums;
  EvaluationRecord record{.version = shard.version, .epochs = open.epochs};
  for (const std::optional<EvaluationSums>& part : open.shards) {
    if (!part.has_value()) return std::nullopt;
    record.sums.samples += part->samples;
    record.sums.loss_sum += part->loss_sum;
    record.sums.loss_weight += part->loss_weight;
    record.sums.correct += part->correct;
    record.sums.labels += part->labels;
  }
  open_.erase(it);
  return record;
}

SharedSnapshot EvaluationBook::Pinned(Version version) const {
  const auto it = open_.find(version);
  return it == open_.end() ? nullptr : it->second.snapshot;
}

}  // namespace cohort
