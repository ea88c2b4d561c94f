#include "server/core/step/pending_commit.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

PendingCommit::PendingCommit(const CommitPlan& plan)
    : transaction_(plan.transaction),
      learning_rate_(plan.learning_rate),
      model_(plan.model),
      optimizer_(plan.optimizer),
      base_(plan.base),
      results_(plan.model->partitions.size()) {
  for (const Partition& partition : model_->partitions) {
    begun_.push_back(!partition.trainable);
    norms_missing_.push_back(partition.trainable && NeedsNorms(optimizer_));
    if (partition.trainable) ++missing_;
    if (norms_missing_.back()) ++norms_missing_count_;
  }
  norms_.resize(begun_.size());
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
  if (!report.prepared.has_value()) {
    TakeNorms(report);
    return true;
  }
  std::optional<FoldResult>& result =
      results_[static_cast<size_t>(report.partition)];
  COHORT_CHECK(HasBegun(report.partition) && !result.has_value(),
               absl::StrCat("partition ", report.partition, " folded twice"));
  result = *std::move(report.prepared);
  --missing_;
  return true;
}

void PendingCommit::TakeNorms(const FoldReport& report) {
  const auto p = static_cast<size_t>(report.partition);
  if (!norms_missing_[p]) return;
  // Neither is of no fold.
  if (report.norms.empty() && !report.nonfinite.has_value()) return;
  norms_missing_[p] = false;
  norms_[p] = report.norms;
  if (--norms_missing_count_ > 0) return;
  if (nonfinite_.has_value()) {
    given_up_ = true;
    return;
  }
  gradient_norm_ = NormOf(norms_);
  scales_ = ScalesOf(norms_, optimizer_, model_->layout, model_->partitions);
}

std::optional<GradientScales> PendingCommit::TakeScales() {
  return std::exchange(scales_, std::nullopt);
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
