#include "server/core/evaluation.h"

#include <algorithm>
#include <utility>

namespace cohort {

namespace {

void Add(const EvaluationSums& part, EvaluationSums& sums) {
  sums.samples += part.samples;
  sums.loss_sum += part.loss_sum;
  sums.loss_weight += part.loss_weight;
  sums.correct += part.correct;
  sums.labels += part.labels;
}

}  // namespace

void EvaluationBook::Start(SharedSnapshot snapshot, const Plan& plan) {
  const Version version = snapshot->version;
  if (plan.test_samples == 0 || plan.kinds.empty() || open_.contains(version)) {
    return;
  }
  const auto count =
      static_cast<int32_t>(std::min<int64_t>(plan.shards, plan.test_samples));
  Open open{.snapshot = std::move(snapshot), .plan = plan};
  open.plan.shards = count;
  for (StatisticsKind kind : plan.kinds) {
    for (int32_t i = 0; i < count; ++i) {
      waiting_.push_back(
          {.version = version,
           .statistics = kind,
           .index = static_cast<int32_t>(open.shards.size()),
           .range = {.begin = plan.test_samples * i / count,
                     .end = plan.test_samples * (i + 1) / count}});
      open.shards.emplace_back();
    }
  }
  open_.emplace(version, std::move(open));
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
  EvaluationRecord record{.version = shard.version,
                          .epochs = open.plan.epochs,
                          .on_request = open.plan.on_request};
  for (StatisticsKind kind : open.plan.kinds) {
    record.results.push_back({.statistics = kind});
  }
  for (size_t i = 0; i < open.shards.size(); ++i) {
    if (!open.shards[i].has_value()) return std::nullopt;
    const size_t kind = i / static_cast<size_t>(open.plan.shards);
    Add(*open.shards[i], record.results[kind].sums);
  }
  open_.erase(it);
  return record;
}

SharedSnapshot EvaluationBook::Pinned(Version version) const {
  const auto it = open_.find(version);
  return it == open_.end() ? nullptr : it->second.snapshot;
}

}  // namespace cohort
