#include "worker/client/held_version.h"

#include <cstddef>

namespace cohort {

std::optional<PullOptions> HeldVersion::MissingFor(const Assignment& assignment,
                                                   Incarnation incarnation) {
  // In another incarnation, the server may not know the version in the model,
  // or may use its number for another version.
  if (incarnation_ != incarnation) {
    incarnation_ = incarnation;
    version_.reset();
  }
  // Every assignment but an asynchronous step needs one exact version. An
  // asynchronous step uses the weights it was last sent, unless they are older
  // than the version that was current when the step was handed out.
  const bool exact =
      assignment.kind != AssignmentKind::kTrain || !assignment.members.empty();
  const bool average = assignment.kind == AssignmentKind::kEvaluate &&
                       assignment.statistics == kAverageStatistics;
  if (version_.has_value() && !is_draft_ && is_average_ == average &&
      (exact ? *version_ == assignment.version
             : *version_ >= assignment.version)) {
    return std::nullopt;
  }
  PullOptions options{.weights = true};
  if (exact) options.version = assignment.version;
  if (average) options.statistics_kind = kAverageStatistics;
  return options;
}

HeldVersion::Outcome HeldVersion::OutcomeOf(
    const PushResult& result, absl::Span<const Partition> partitions) {
  const PushVerdict& verdict = result.verdict;
  if (verdict.verdict == Verdict::kSkipped) return Outcome::kSame;
  // A verdict without weights (the answer to a repeated push) leaves the
  // version unknown.
  if (!IsApplied(verdict.verdict) || result.weights.empty()) {
    return Outcome::kUnknown;
  }
  for (size_t p = 0; p < result.weights.size(); ++p) {
    if (partitions[p].trainable && result.weights[p].size_bytes() == 0) {
      return Outcome::kUnknown;
    }
  }
  return Outcome::kArrived;
}

}  // namespace cohort
