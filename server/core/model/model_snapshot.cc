#include "server/core/model/model_snapshot.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cohort {

std::shared_ptr<ModelSnapshot> SnapshotOf(SharedVersion version) {
  auto snapshot = std::make_shared<ModelSnapshot>();
  static_cast<ModelVersion&>(*snapshot) = *version;
  snapshot->pin = std::move(version);
  return snapshot;
}

std::vector<SharedFloats> WeightsToRead(const ModelSnapshot& snapshot,
                                        bool averages) {
  std::vector<SharedFloats> weights = snapshot.weights;
  for (size_t p = 0; averages && p < weights.size(); ++p) {
    // The average of frozen weights is the weights.
    if (snapshot.slots[p].average != nullptr) {
      weights[p] = snapshot.slots[p].average;
    }
  }
  return weights;
}

SharedSnapshot AverageOf(const ModelSnapshot& snapshot) {
  const StatisticsSet* set =
      FindSet(*snapshot.statistics, StatisticsKind::kAverage);
  if (set == nullptr) return nullptr;
  auto average = std::make_shared<ModelSnapshot>();
  average->version = snapshot.version;
  average->weights = WeightsToRead(snapshot, /*averages=*/true);
  average->slots.resize(average->weights.size());
  average->statistics =
      std::make_shared<const StatisticsSets>(StatisticsSets{*set});
  average->front_end_state = snapshot.front_end_state;
  return average;
}

SharedSnapshot PartOf(SharedSnapshot snapshot, const ShardPlace& place) {
  if (place.count == 1) return snapshot;
  auto part = std::make_shared<ModelSnapshot>(*snapshot);
  for (size_t p = 0; p < part->weights.size(); ++p) {
    if (place.Owns(static_cast<int32_t>(p))) continue;
    part->weights[p] = nullptr;
    if (p < part->slots.size()) part->slots[p] = Slots();
  }
  return part;
}

absl::Status CheckShards(const CoordinatorOptions& options,
                         const ModelLayout& layout) {
  std::vector<bool> trains(static_cast<size_t>(options.shards));
  const std::vector<Partition> partitions =
      MakePartitions(layout, options.partition_bytes);
  for (size_t p = 0; p < partitions.size(); ++p) {
    if (partitions[p].trainable) trains[p % trains.size()] = true;
  }
  for (size_t i = 0; i < trains.size(); ++i) {
    if (trains[i] || trains.size() == 1) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "got ", trains.size(), " shards for a model of ", partitions.size(),
        partitions.size() == 1 ? " partition" : " partitions", ", and shard ",
        i, " would have nothing to train; start fewer (--shards of cohortctl, ",
        "--shard_addresses), or cut the model into smaller partitions "
        "(--partition_kib, now ",
        options.partition_bytes / 1024, ")"));
  }
  return absl::OkStatus();
}

}  // namespace cohort
