#include "server/core/evaluation/evaluation.h"

#include <algorithm>
#include <utility>

#include "common/measures/measures.h"

namespace cohort {

void EvaluationBook::Start(SharedVersion snapshot, const Plan& plan) {
  const Version version = snapshot->version;
  if (plan.test_samples == 0 || plan.kinds.empty() || open_.contains(version)) {
    return;
  }
  // No shard is empty.
  const auto count =
      static_cast<int32_t>(std::min<int64_t>(plan.shards, plan.test_samples));
  Open open{.snapshot = std::move(snapshot), .plan = plan};
  open.plan.shards = count;
  for (StatisticsKind kind : plan.kinds) {
    for (int32_t i = 0; i < count; ++i) {
      waiting_.push_back(
          {.version = version,
           .statistics = kind,
           // Counted through all kinds, so that Finish finds the kind of a
           // shard by division.
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

absl::Status EvaluationBook::CheckFits(const Shard& shard,
                                       const EvaluationSums& sums) const {
  for (const std::optional<EvaluationSums>& other :
       open_.at(shard.version).shards) {
    if (other.has_value()) return CheckSameMeasures(sums, *other);
  }
  return absl::OkStatus();
}

std::optional<EvaluationRecord> EvaluationBook::Finish(
    const Shard& shard, const EvaluationSums& sums) {
  Open& open = open_.at(shard.version);
  open.shards[static_cast<size_t>(shard.index)] = sums;
  EvaluationRecord record{.version = shard.version,
                          .epochs = open.plan.epochs,
                          .on_request = open.plan.on_request};
  for (StatisticsKind kind : open.plan.kinds) {
    record.results.push_back({.statistics = kind});
  }
  // Summed only when all are in: shards arrive in any order, and the sums of
  // floating-point numbers must not depend on it.
  for (size_t i = 0; i < open.shards.size(); ++i) {
    if (!open.shards[i].has_value()) return std::nullopt;
    const auto count = static_cast<size_t>(open.plan.shards);
    EvaluationSums& whole = record.results[i / count].sums;
    if (i % count == 0) {
      whole = *open.shards[i];
    } else {
      Add(*open.shards[i], whole);
    }
  }
  open_.erase(shard.version);
  return record;
}

SharedVersion EvaluationBook::Pinned(Version version) const {
  const auto it = open_.find(version);
  return it == open_.end() ? nullptr : it->second.snapshot;
}

}  // namespace cohort
