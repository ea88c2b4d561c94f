#include "server/core/step/pending_commit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

PendingCommit::PendingCommit(const CommitPlan& plan, SharedModel model,
                             const OptimizerOptions& optimizer)
    : transaction_(plan.transaction),
      learning_rate_(plan.learning_rate),
      model_(std::move(model)),
      optimizer_(optimizer, plan.numbers),
      base_version_(plan.base),
      update_(plan.update),
      continues_(plan.continues),
      prepared_(model_->partitions.size()),
      finite_(model_->partitions.size()) {
  for (const Partition& partition : model_->partitions) {
    begun_.push_back(!partition.trainable);
    if (partition.trainable) ++missing_;
  }
  norms_.resize(begun_.size());
  norms_missing_.resize(begun_.size());
  if (NeedsNorms(optimizer)) AwaitNorms();
}

void PendingCommit::AwaitNorms() {
  for (size_t p = 0; p < norms_missing_.size(); ++p) {
    norms_missing_[p] = model_->partitions[p].trainable;
  }
  norms_missing_count_ = missing_;
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
  if (!report.prepared) {
    TakeNorms(report);
    return true;
  }
  const auto p = static_cast<size_t>(report.partition);
  COHORT_CHECK(begun_[p] && !prepared_[p],
               absl::StrCat("partition ", report.partition, " folded twice"));
  prepared_[p] = true;
  finite_[p] = !report.nonfinite.has_value();
  --missing_;
  return true;
}

void PendingCommit::TakeNorms(const FoldReport& report) {
  const auto p = static_cast<size_t>(report.partition);
  if (!norms_missing_[p]) return;
  // A report with neither is of no pass that gives norms.
  if (report.norms.empty() && !report.nonfinite.has_value()) return;
  norms_missing_[p] = false;
  norms_[p] = report.norms;
  if (--norms_missing_count_ > 0) return;
  if (nonfinite_.has_value()) {
    given_up_ = true;
    return;
  }
  if (gradient_norm_.has_value()) {
    scales_ = GradientScales{
        .clip = clip_,
        .trust_ratios = UpdateRatios(norms_, optimizer_, model_->layout,
                                     model_->partitions)};
    return;
  }
  gradient_norm_ = NormOf(norms_);
  scales_ = ScalesOf(norms_, optimizer_, model_->layout, model_->partitions);
  clip_ = scales_->clip;
  if (MeasuresUpdates(optimizer_.options().kind)) AwaitNorms();
}

std::optional<GradientScales> PendingCommit::TakeScales() {
  return std::exchange(scales_, std::nullopt);
}

}  // namespace cohort
