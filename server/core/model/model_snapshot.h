#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/data/shard_place.h"
#include "server/core/optimizer/slots.h"
#include "server/core/options.h"
#include "server/core/statistics_sets.h"

namespace cohort {

using SharedText = std::shared_ptr<const std::string>;

// One version of everything that training changes. Immutable and shared:
// replies, evaluation and checkpoints read it while newer ones are made.
struct ModelSnapshot {
  Version version;
  // One entry a partition; null where another shard has them.
  std::vector<SharedFloats> weights;
  // State of the optimizer; empty entries for partitions without gradients.
  std::vector<Slots> slots;
  // Kinds of moving statistics in the policy's order; the first is exported.
  std::shared_ptr<const StatisticsSets> statistics;
  // State of the training programs; see PushClosing. Null: none was sent.
  SharedText front_end_state;
};

using SharedSnapshot = std::shared_ptr<const ModelSnapshot>;

// Layout and plan of the run, fixed by the first complete registration.
struct RegisteredModel {
  ModelLayout layout;
  std::vector<Partition> partitions;
  RunPlan plan;
};

using SharedModel = std::shared_ptr<const RegisteredModel>;

// Everything of a new version that is no weight or slot.
struct VersionExtras {
  StatisticsSets statistics;
  // Null: that of the version before.
  SharedText front_end_state;
};

// The version after `base` with its weights unchanged.
SharedSnapshot Successor(const ModelSnapshot& base, VersionExtras extras);

// The weights of `snapshot`, or of their moving averages.
std::vector<SharedFloats> WeightsToRead(const ModelSnapshot& snapshot,
                                        bool averages);

// The moving averages at a version, as a version of their own without slots;
// null if none are kept.
SharedSnapshot AverageOf(const ModelSnapshot& snapshot);

// `snapshot` with the weights and slots of the partitions that `place` owns;
// the others are null. Itself if there is one shard.
SharedSnapshot PartOf(SharedSnapshot snapshot, const ShardPlace& place);

// Errors: FailedPrecondition: the model has so few partitions that a shard
// would have nothing to train.
absl::Status CheckShards(const CoordinatorOptions& options,
                         const ModelLayout& layout);

// `base` with other moving statistics.
SharedSnapshot WithSets(const ModelSnapshot& base, StatisticsSets sets);

}  // namespace cohort
