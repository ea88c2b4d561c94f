#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/moments.h"

namespace cohort {

// Where batch-norm calls of one training step exchange their moments. Methods
// are called on the thread that runs the model.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Combines each entry of `local` with the same call of all members, and waits
  // once for all results, which are in the same order. `layers` are indices
  // into ModelLayout::batch_norms; `calls` count the calls of a layer within
  // the step.
  // Errors: Aborted or Unavailable: the step is void.
  virtual absl::StatusOr<std::vector<Moments>> Reduce(
      ReducePhase phase, absl::Span<const CallMoments> local) = 0;
};

}  // namespace cohort
