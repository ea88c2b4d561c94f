#pragma once

#include <memory>
#include <string>

#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/statistics/statistics_sets.h"

namespace cohort {

using SharedText = std::shared_ptr<const std::string>;

using SharedModel = std::shared_ptr<const RegisteredModel>;

// One version of what training changes, without weights and slots: these are
// at the shards, which keep them as long as this exists. Immutable and shared.
struct ModelVersion {
  Version version;
  // Kinds of moving statistics in the policy's order; the first is exported.
  std::shared_ptr<const StatisticsSets> statistics;
  // State of the training programs; see PushClosing. Null: none was sent.
  SharedText front_end_state;
};

using SharedVersion = std::shared_ptr<const ModelVersion>;

// Everything else than weights and slots that a commit changes.
struct VersionExtras {
  StatisticsSets statistics;
  // Null: that of the version before.
  SharedText front_end_state;
};

// The version after `base`.
SharedVersion Successor(const ModelVersion& base, VersionExtras extras);

// `base` with other moving statistics.
SharedVersion WithSets(const ModelVersion& base, StatisticsSets sets);

}  // namespace cohort
