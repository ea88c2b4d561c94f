#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/moments.h"

namespace cohort {

// Where batch-norm calls of one training step exchange their moments. The
// caller of each method is the thread that runs the model.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Combines each of `local` with the same call of all members, waiting once
  // for all of them; the results are in the same order. The layers index
  // ModelLayout::batch_norms, the calls count those of a layer within the step.
  // Errors: Aborted or Unavailable: the step is void.
  virtual absl::StatusOr<std::vector<Moments>> Reduce(
      ReducePhase phase, absl::Span<const CallMoments> local) = 0;
};

}  // namespace cohort
