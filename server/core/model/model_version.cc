#include "server/core/model/model_version.h"

#include <utility>

namespace cohort {

SharedVersion Successor(const ModelVersion& base, VersionExtras extras) {
  auto next = std::make_shared<ModelVersion>(base);
  next->version = base.version.Next();
  next->statistics =
      std::make_shared<const StatisticsSets>(std::move(extras.statistics));
  if (extras.front_end_state != nullptr) {
    next->front_end_state = std::move(extras.front_end_state);
  }
  return next;
}

SharedVersion WithSets(const ModelVersion& base, StatisticsSets sets) {
  auto next = std::make_shared<ModelVersion>(base);
  next->statistics = std::make_shared<const StatisticsSets>(std::move(sets));
  return next;
}

}  // namespace cohort
