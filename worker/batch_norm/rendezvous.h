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

  // Combines each entry of `local` with the contributions of all members to
  // the same place, and waits once for all results, which are in the same
  // order.
  // Errors: Aborted or Unavailable: the step is void.
  virtual absl::StatusOr<std::vector<Moments>> Reduce(
      absl::Span<const Contribution> local) = 0;
};

}  // namespace cohort
