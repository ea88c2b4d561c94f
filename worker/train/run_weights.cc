#include "worker/train/run_weights.h"

#include <utility>

#include "common/status_macros.h"

namespace cohort {

absl::StatusOr<std::unique_ptr<RunWeights>> RunWeights::Make(
    Client& client, const Compute& compute, ModelWeights weights,
    TrainerObserver* observer) {
  auto made = std::unique_ptr<RunWeights>(
      new RunWeights(client, std::move(weights), observer));
  if (compute.accelerator != nullptr) {
    COHORT_ASSIGN_OR_RETURN(made->transfer_,
                            WeightTransfer::Make(compute, made->weights_));
  }
  return made;
}

absl::Status RunWeights::Read(const Assignment& assignment) {
  const std::optional<PullOptions> missing =
      held_.MissingFor(assignment, client_.incarnation());
  if (!missing.has_value()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(const PulledVersion pulled, client_.Pull(*missing));
  held_.Forget();
  COHORT_RETURN_IF_ERROR(Load(pulled.weights));
  Have(pulled.version, *missing);
  return absl::OkStatus();
}

absl::Status RunWeights::Take(const PushResult& result) {
  const auto outcome = HeldVersion::OutcomeOf(result, weights_.partitions());
  if (outcome != HeldVersion::Outcome::kSame) held_.Forget();
  if (outcome == HeldVersion::Outcome::kUnknown) return absl::OkStatus();
  if (outcome == HeldVersion::Outcome::kArrived) {
    COHORT_RETURN_IF_ERROR(Load(result.weights));
  }
  Have(result.verdict.version);
  return absl::OkStatus();
}

absl::Status RunWeights::Load(absl::Span<const ByteRope> weights) {
  return transfer_ == nullptr ? weights_.Load(weights)
                              : transfer_->Load(weights);
}

void RunWeights::Have(Version version, const PullOptions& read) {
  held_.Hold(version, read);
  if (observer_ != nullptr) observer_->OnWeights(version);
}

}  // namespace cohort
