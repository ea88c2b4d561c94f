#include "worker/client/kept_weights.h"

#include "worker/client/held_version.h"

namespace cohort {

KeptWeights::Shared KeptWeights::Find(Version version,
                                      Incarnation incarnation) const {
  const bool same = version_ == version && incarnation_ == incarnation;
  return same ? weights_ : nullptr;
}

void KeptWeights::Take(const PulledVersion& pulled, const PullOptions& options,
                       Incarnation incarnation) {
  if (!options.weights || options.statistics_kind == kAverageStatistics) return;
  weights_ = std::make_shared<const std::vector<ByteRope>>(pulled.weights);
  version_ = pulled.version;
  incarnation_ = incarnation;
}

void KeptWeights::Follow(const PushResult& result,
                         absl::Span<const Partition> partitions,
                         Incarnation incarnation) {
  switch (HeldVersion::OutcomeOf(result, partitions)) {
    case HeldVersion::Outcome::kSame:
      // The version has the weights that the push has read.
      version_ = result.verdict.version;
      return;
    case HeldVersion::Outcome::kUnknown:
      return Forget();
    case HeldVersion::Outcome::kArrived:
      break;
  }
  weights_ = std::make_shared<const std::vector<ByteRope>>(result.weights);
  version_ = result.verdict.version;
  incarnation_ = incarnation;
}

}  // namespace cohort
