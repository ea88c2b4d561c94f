#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/float_buffer.h"
#include "common/model_layout.h"
#include "server/core/settings/options.h"

namespace cohort {

// The optimizer's state for one partition: float32, one entry for each element.
// Null if the optimizer does not keep it.
struct Slots {
  // For momentum and nesterov: a decaying sum of gradients.
  SharedFloats velocity;
  // For LARS: the same sum of gradients times their trust ratio. Separate,
  // because neither can replace the other.
  SharedFloats scaled_velocity;
  // For adam and adamw: moving means of g and g*g.
  SharedFloats first_moment;
  SharedFloats second_moment;
  // For adaptive delay compensation: moving mean of g*g.
  SharedFloats mean_square;
  // With OptimizerOptions::ema_decay: moving average of the weights.
  SharedFloats average;
  // For synchronous steps with --wire=bf16: what the rounding of changes has
  // left over, u - (w' - w) of Backend::RoundChange.
  SharedFloats remainder;
  // For adam and adamw: the number of updates of each slice of the partition.
  // Counted by slice, because a gradient that all ranks lack skips its slices,
  // and frozen slices are not counted.
  std::vector<int64_t> updates;
};

// One of the buffers in Slots.
struct SlotKind {
  // In checkpoints and errors, such as "velocity".
  const char* name;
  SharedFloats Slots::*buffer;

  friend bool operator==(const SlotKind& a, const SlotKind& b) {
    return a.buffer == b.buffer;
  }
};

// The velocity there is; a null pointer to a member: none.
SharedFloats Slots::*VelocityOf(const Slots& slots);

// All there are.
absl::Span<const SlotKind> AllSlots();

// Memory of all that are there.
int64_t BytesOf(const Slots& slots);

// Those that `kind` works with.
std::vector<SlotKind> SlotsOf(OptimizerKind kind);
// Those that a run works with: the optimizer's, the mean square if stale pushes
// are compensated adaptively, the average if one is kept, and the remainder if
// changes are rounded.
std::vector<SlotKind> SlotsOf(const OptimizerOptions& optimizer,
                              const PolicyOptions& policy);
// Those that are there, of any partition.
std::vector<SlotKind> SlotsHeld(const std::vector<Slots>& held);

// Whether a run that holds `held` may go on as `to`. It may with the same
// slots, from none (the new ones start from zeros) and to none (they are
// dropped); mean square, average and remainder come and go freely, and without
// the remainder the weights stay as they are. Anything else would be
// a sudden stop of what the old ones had gathered. Errors: FailedPrecondition
// naming --optimizer, the slots and the way out.
absl::Status CheckSlots(const std::vector<SlotKind>& held, OptimizerKind to);

// `held` with exactly the slots `wanted`: those there are stay (shared), new
// ones are zeros (the average: `weights`, shared), others go. Frozen partitions
// have none, nor have those without weights here. `weights` has one entry a
// partition.
std::vector<Slots> FitSlots(const std::vector<Partition>& partitions,
                            const std::vector<SharedFloats>& weights,
                            const std::vector<Slots>& held,
                            const std::vector<SlotKind>& wanted);

absl::string_view OptimizerName(OptimizerKind kind);

}  // namespace cohort
