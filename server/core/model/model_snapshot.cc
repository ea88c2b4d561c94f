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

SharedSnapshot WithSets(const ModelSnapshot& base, StatisticsSets sets) {
  auto next = std::make_shared<ModelSnapshot>(base);
  next->statistics = std::make_shared<const StatisticsSets>(std::move(sets));
  return next;
}

}  // namespace cohort
