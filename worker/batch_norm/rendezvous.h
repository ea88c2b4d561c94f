#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/moments.h"
#include "common/status_macros.h"

namespace cohort {

// Where batch-norm calls of one training step exchange their moments. Methods
// are called on the thread that runs the model.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Sends each entry of `local`, to be combined with the contributions of all
  // members to the same place. Await comes before the next call.
  // Errors: Aborted or Unavailable: the step is void.
  virtual absl::Status Contribute(absl::Span<const Contribution> local) = 0;
  // Waits once for the results of these, which are in the same order.
  // Errors: as of Contribute.
  virtual absl::StatusOr<std::vector<Moments>> Await(
      absl::Span<const Contribution> local) = 0;

  absl::StatusOr<std::vector<Moments>> Reduce(
      absl::Span<const Contribution> local) {
    COHORT_RETURN_IF_ERROR(Contribute(local));
    return Await(local);
  }
};

}  // namespace cohort
