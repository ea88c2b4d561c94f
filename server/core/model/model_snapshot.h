#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/optimizer/slots.h"
#include "server/core/statistics_sets.h"

namespace cohort {

// One version of everything that training changes. Immutable and shared:
// replies, evaluation and checkpoints read it while newer ones are made.
struct ModelSnapshot {
  Version version;
  // One entry a partition.
  std::vector<SharedFloats> weights;
  // XXH3-64 of each.
  std::vector<uint64_t> checksums;
  // State of the optimizer; empty entries for partitions without gradients.
  std::vector<Slots> slots;
  // Kinds of moving statistics in the policy's order; the first is exported.
  std::shared_ptr<const StatisticsSets> statistics;
};

using SharedSnapshot = std::shared_ptr<const ModelSnapshot>;

// Layout and plan of the run, fixed by the first complete registration.
struct RegisteredModel {
  ModelLayout layout;
  std::vector<Partition> partitions;
  RunPlan plan;
};

using SharedModel = std::shared_ptr<const RegisteredModel>;

// The version after `base` with its weights unchanged.
SharedSnapshot Successor(const ModelSnapshot& base, StatisticsSets statistics);

// `base` with other moving statistics.
SharedSnapshot WithSets(const ModelSnapshot& base, StatisticsSets sets);

}  // namespace cohort
