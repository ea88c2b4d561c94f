#pragma once

#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model_layout.h"
#include "worker/client/bulk_call.h"
#include "worker/client/client.h"

namespace cohort {

// The model to register. Everything is borrowed for the call.
struct RegistrationOffer {
  const ModelLayout& layout;
  const RunPlan& plan;
  // One span a parameter, of the parameter's size. If absent, the model is only
  // verified.
  std::optional<absl::Span<const absl::Span<const float>>> values;
  absl::Span<const LayerStatistics> statistics;
  // Called with what the server waits for before it answers; returns the new
  // deadline.
  std::function<Instant(const Assignment& wait)> on_wait;
};

// Parameters.Register.
// Errors: as documented there, and FailedPrecondition if the server requests
//   values and none are offered: it has lost the run.
absl::StatusOr<Registration> RegisterModel(const BulkTarget& target,
                                           const RegistrationOffer& offer);

// Parameters.Pull. The weights are not copied.
// Errors: as documented there, and DataLoss: a reply was damaged on its way;
//   another try may get it whole.
absl::StatusOr<PulledVersion> PullVersion(const BulkTarget& target,
                                          const PullOptions& options);

}  // namespace cohort
