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
  // In another incarnation, the server may not know the version in the model,
  // or may use its number for another version.
  if (incarnation_ != client_.incarnation()) {
    incarnation_ = client_.incarnation();
    version_.reset();
  }
  // Every assignment but an asynchronous step needs one exact version. An
  // asynchronous step uses the weights it was last sent, unless they are older
  // than the version that was current when the step was handed out.
  const bool exact =
      assignment.kind != AssignmentKind::kTrain || !assignment.members.empty();
  if (version_.has_value() && (exact ? *version_ == assignment.version
                                     : *version_ >= assignment.version)) {
    return absl::OkStatus();
  }
  PullOptions options{.weights = true};
  if (exact) options.version = assignment.version;
  COHORT_ASSIGN_OR_RETURN(const PulledVersion pulled, client_.Pull(options));
  version_.reset();
  COHORT_RETURN_IF_ERROR(Load(pulled.weights));
  Have(pulled.version);
  return absl::OkStatus();
}

absl::Status RunWeights::Take(const PushResult& result) {
  const PushVerdict& verdict = result.verdict;
  if (verdict.verdict == Verdict::kSkipped) {
    Have(verdict.version);
    return absl::OkStatus();
  }
  version_.reset();
  const bool applied = IsApplied(verdict.verdict);
  // A verdict without weights (the answer to a repeated push) leaves the
  // version unknown, so the next step pulls.
  for (size_t p = 0; p < result.weights.size(); ++p) {
    if (!applied || (weights_.partitions()[p].trainable &&
                     result.weights[p].size_bytes() == 0)) {
      return absl::OkStatus();
    }
  }
  if (!applied || result.weights.empty()) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(Load(result.weights));
  Have(verdict.version);
  return absl::OkStatus();
}

absl::Status RunWeights::Load(absl::Span<const ByteRope> weights) {
  return transfer_ == nullptr ? weights_.Load(weights)
                              : transfer_->Load(weights);
}

void RunWeights::Have(Version version) {
  version_ = version;
  if (observer_ != nullptr) observer_->OnWeights(version);
}

}  // namespace cohort
