#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/assignment.h"

namespace cohort {

// Where batch-norm calls of one training step exchange their moments. The
// caller of each method is the thread that runs the model.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Combines `local` with the same call of all members; blocks.
  // `layer` indexes ModelLayout::batch_norms, `call` counts its calls within
  // the step.
  // Errors: Aborted or Unavailable: the step is void.
  virtual absl::StatusOr<Moments> Reduce(int32_t layer, int32_t call,
                                         ReducePhase phase,
                                         const Moments& local) = 0;
};

}  // namespace cohort
