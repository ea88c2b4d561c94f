#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/float_buffer.h"
#include "common/model_layout.h"
#include "server/core/settings/options.h"

namespace cohort {

// The optimizer's state for one partition: float32, one entry for each element.
// Null if the optimizer does not keep it.
struct Slots {
  // The slots of all rules.
#define COHORT_OPTIMIZER_SLOT(name) SharedFloats name;
#include "common/optimizers.inc"
  // For adaptive delay compensation: moving mean of g*g.
  SharedFloats mean_square;
  // With OptimizerOptions::ema_decay: moving average of the weights.
  SharedFloats average;
  // For synchronous steps with --wire=bf16: what the rounding of changes has
  // left over, u - (w' - w) of Backend::RoundChange.
  SharedFloats remainder;
  // For rules that count: the number of updates of each slice of the partition.
  // Counted by slice, because a gradient that all ranks lack skips its slices,
  // and frozen slices are not counted.
  std::vector<int64_t> updates;
};

// One of the buffers in Slots.
struct SlotKind {
  // In checkpoints and errors, such as "velocity".
  const char* name;
  SharedFloats Slots::*buffer;
  // The value that it starts from; the average starts from the weights.
  float initial = 0;

  friend bool operator==(const SlotKind& a, const SlotKind& b) {
    return a.buffer == b.buffer;
  }
};

// All there are, and those of the rules among them.
absl::Span<const SlotKind> AllSlots();
absl::Span<const SlotKind> SlotsOfRules();

// Memory of all that are there.
int64_t BytesOf(const Slots& slots);

// Whether a rule that counts updates keeps them.
bool CountsUpdates(const Slots& slots);

// The slots of the rule `kind`, in its order, whatever its numbers.
const std::vector<SlotKind>& SlotsOfRule(OptimizerKind kind);
// The slots that `kind` cannot do without.
std::vector<SlotKind> SlotsOf(OptimizerKind kind);
// The slots that a run works with: the optimizer's, the mean square if stale
// pushes are compensated adaptively, the average if one is kept, and the
// remainder if changes are rounded.
std::vector<SlotKind> SlotsOf(const OptimizerOptions& optimizer,
                              const PolicyOptions& policy);
// The slots that some partition has.
std::vector<SlotKind> SlotsHeld(const std::vector<Slots>& held);

// Whether a run that holds `held` may continue as `to`. It may with the same
// slots, from none (the new ones start from their initial values) and to none
// (they are dropped). What a rule keeps with some of its numbers only, mean
// square, average and remainder come and go freely, and without the remainder
// the weights stay as they are. Anything else would be a sudden stop of what
// the old ones had gathered. Errors: FailedPrecondition naming --optimizer, the
// slots and the way out.
absl::Status CheckSlots(const std::vector<SlotKind>& held, OptimizerKind to);

// `held` with exactly the slots `wanted`: those there are stay (shared), new
// ones have their initial values (the average: `weights`, shared), others go.
// Frozen partitions have none, nor have those without weights here. `weights`
// has one entry a partition.
std::vector<Slots> FitSlots(const std::vector<Partition>& partitions,
                            const std::vector<SharedFloats>& weights,
                            const std::vector<Slots>& held,
                            const std::vector<SlotKind>& wanted);

}  // namespace cohort
