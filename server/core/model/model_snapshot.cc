#include "server/core/model/model_snapshot.h"

#include <utility>

namespace cohort {

SharedSnapshot Successor(const ModelSnapshot& base, VersionExtras extras) {
  auto next = std::make_shared<ModelSnapshot>(base);
  next->version = base.version.Next();
  next->statistics =
      std::make_shared<const StatisticsSets>(std::move(extras.statistics));
  if (extras.front_end_state != nullptr) {
    next->front_end_state = std::move(extras.front_end_state);
  }
  return next;
}

SharedSnapshot AverageOf(const ModelSnapshot& snapshot) {
  const StatisticsSet* set =
      FindSet(*snapshot.statistics, StatisticsKind::kAverage);
  if (set == nullptr) return nullptr;
  auto average = std::make_shared<ModelSnapshot>();
  average->version = snapshot.version;
  average->weights = snapshot.weights;
  for (size_t p = 0; p < average->weights.size(); ++p) {
    // The average of frozen weights is the weights.
    if (snapshot.slots[p].average == nullptr) continue;
    average->weights[p] = snapshot.slots[p].average;
  }
  average->slots.resize(average->weights.size());
  average->statistics =
      std::make_shared<const StatisticsSets>(StatisticsSets{*set});
  average->front_end_state = snapshot.front_end_state;
  return average;
}

SharedSnapshot WithSets(const ModelSnapshot& base, StatisticsSets sets) {
  auto next = std::make_shared<ModelSnapshot>(base);
  next->statistics = std::make_shared<const StatisticsSets>(std::move(sets));
  return next;
}

}  // namespace cohort
