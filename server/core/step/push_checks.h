#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/events/effects.h"
#include "server/core/events/requests.h"
#include "server/core/step/arrived_push.h"

// Checks of a push that do not depend on how pushes are combined. Errors
// are InvalidArgument with the value seen and the values wanted, where nothing
// else is said.
namespace cohort {

// The values that an opening must have.
struct OpeningBounds {
  Rank rank;
  // Absent: any number up to limits::kBatchSizeMax.
  std::optional<int64_t> samples;
  // Number of learning rates, if there are any.
  size_t rates = 0;
  bool needs_rates = false;
  // The version read is one of these.
  Version oldest;
  Version newest;
};
absl::Status CheckOpening(const PushOpening& opening,
                          const OpeningBounds& bounds);

absl::Status CheckGradient(const GradientArrival& gradient,
                           const std::vector<Partition>& partitions);

// Errors: FailedPrecondition: gradients come after the opening of their push.
absl::Status CheckOpened(const ArrivedPush& push, const PushKey& key,
                         const GradientArrival& gradient);

// The kind of moments that a closing carries.
struct ClosingBounds {
  // No moments, as they are combined in rendezvous.
  bool global = false;
  // Those of all calls of a layer together.
  bool local_steps = false;
};
absl::Status CheckClosing(const PushClosing& closing,
                          const std::vector<BatchNormSpec>& layers,
                          const ClosingBounds& bounds);

// Removes the measures that are not finite, and returns their names. In the sum
// over ranks, steps and a window of the history one of them would hide all
// others. The push is as good without them, so it is not refused.
std::vector<std::string> TakeNonfiniteMeasures(PushClosing& closing);

}  // namespace cohort
