#include "server/core/model/model_snapshot.h"

#include <utility>

namespace cohort {

SharedSnapshot Successor(const ModelSnapshot& base, StatisticsSets statistics) {
  auto next = std::make_shared<ModelSnapshot>(base);
  next->version = base.version.Next();
  next->statistics =
      std::make_shared<const StatisticsSets>(std::move(statistics));
  return next;
}

SharedSnapshot WithSets(const ModelSnapshot& base, StatisticsSets sets) {
  auto next = std::make_shared<ModelSnapshot>(base);
  next->statistics = std::make_shared<const StatisticsSets>(std::move(sets));
  return next;
}

}  // namespace cohort
