#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/float_buffer.h"
#include "common/model_layout.h"
#include "server/core/model/model_version.h"
#include "server/core/model/shard_place.h"
#include "server/core/optimizer/slots.h"
#include "server/core/settings/options.h"

namespace cohort {

// One version with weights and slots, for its readers: replies, evaluation
// and checkpoints, while newer ones are made. Immutable and shared.
struct ModelSnapshot : ModelVersion {
  // One entry a partition; null where another shard has them.
  std::vector<SharedFloats> weights;
  // State of the optimizer; empty entries for partitions without gradients.
  std::vector<Slots> slots;
  // Makes the shards keep the version for as long. Null: nothing does.
  SharedVersion pin;
};

using SharedSnapshot = std::shared_ptr<const ModelSnapshot>;

// `version` without weights and slots.
std::shared_ptr<ModelSnapshot> SnapshotOf(SharedVersion version);

// The weights of `snapshot`, or of their moving averages.
std::vector<SharedFloats> WeightsToRead(const ModelSnapshot& snapshot,
                                        bool averages);

// The moving averages at a version, as a separate version without slots;
// null if none are kept.
SharedSnapshot AverageOf(const ModelSnapshot& snapshot);

// `snapshot` with the weights and slots of the partitions that `place` owns;
// the others are null. Itself if there is one shard.
SharedSnapshot PartOf(SharedSnapshot snapshot, const ShardPlace& place);

// Errors: FailedPrecondition: the model has so few partitions that a shard
// would have nothing to train.
absl::Status CheckShards(const CoordinatorOptions& options,
                         const ModelLayout& layout);

}  // namespace cohort
