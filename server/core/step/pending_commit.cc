#include "server/core/step/pending_commit.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

PendingCommit::PendingCommit(const CommitPlan& plan)
    : transaction_(plan.transaction),
      learning_rate_(plan.learning_rate),
      base_(plan.base),
      results_(plan.model->partitions.size()) {
  for (const Partition& partition : plan.model->partitions) {
    begun_.push_back(!partition.trainable);
    if (partition.trainable) ++missing_;
  }
}

void PendingCommit::Begin(int32_t partition) {
  COHORT_CHECK(!HasBegun(partition), absl::StrCat("partition ", partition));
  begun_[static_cast<size_t>(partition)] = true;
}

bool PendingCommit::Take(FoldReport report) {
  if (report.transaction != transaction_) return false;
  if (report.nonfinite.has_value() && !nonfinite_.has_value()) {
    nonfinite_ = report.nonfinite;
  }
  if (report.gradient_norm.has_value()) gradient_norm_ = report.gradient_norm;
  given_up_ = given_up_ || report.given_up;
  if (report.prepared.has_value()) {
    std::optional<FoldResult>& result =
        results_[static_cast<size_t>(report.partition)];
    COHORT_CHECK(HasBegun(report.partition) && !result.has_value(),
                 absl::StrCat("partition ", report.partition, " folded twice"));
    result = *std::move(report.prepared);
    --missing_;
  }
  return true;
}

SharedSnapshot PendingCommit::Next(VersionExtras extras) const {
  COHORT_CHECK(complete() && !nonfinite_.has_value(), "not ready to commit");
  auto next =
      std::make_shared<ModelSnapshot>(*Successor(*base_, std::move(extras)));
  for (size_t p = 0; p < results_.size(); ++p) {
    const std::optional<FoldResult>& result = results_[p];
    if (!result.has_value()) continue;
    next->weights[p] = result->weights;
    next->slots[p] = result->slots;
  }
  return next;
}

}  // namespace cohort
