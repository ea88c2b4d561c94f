#include "server/partitions/fold_stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

bool FoldStage::Contributes(const PushId& push) const {
  if (!transaction_.has_value()) return false;
  const std::vector<PushId>& contributors = transaction_->plan().contributors;
  return std::binary_search(contributors.begin(), contributors.end(), push);
}

std::vector<FoldJob> FoldStage::Hold(HeldGradient gradient) {
  const PushId push = gradient.push;
  const int32_t partition = gradient.partition;
  const bool fresh =
      pushes_[push].emplace(partition, std::move(gradient)).second;
  COHORT_CHECK(fresh, absl::StrCat("rank ", push.rank.value(), ", partition ",
                                   partition, " is held twice"));
  if (!Contributes(push)) return {};
  ++arrived_[static_cast<size_t>(partition)];
  std::vector<FoldJob> folds;
  if (std::optional<FoldJob> fold = FoldIfComplete(partition)) {
    folds.push_back(*std::move(fold));
  }
  return folds;
}

std::vector<HeldGradient> FoldStage::Drop(const PushId& push) {
  auto node = pushes_.extract(push);
  if (node.empty()) return {};
  std::vector<HeldGradient> dropped;
  for (auto& [partition, gradient] : node.mapped()) {
    if (Contributes(push)) --arrived_[static_cast<size_t>(partition)];
    dropped.push_back(std::move(gradient));
  }
  return dropped;
}

std::vector<FoldJob> FoldStage::Prepare(CommitPlan plan, PlanContext context) {
  COHORT_CHECK(!transaction_.has_value(),
               absl::StrCat("transaction ", plan.transaction,
                            " begins before another is over"));
  arrived_.assign(context.model->partitions.size(), 0);
  transaction_.emplace(std::move(plan), std::move(context), place_);
  // The plan comes when the last push opens. Gradients of the others are here.
  const CommitPlan& begun = transaction_->plan();
  for (const PushId& push : begun.contributors) {
    const auto held = pushes_.find(push);
    if (held == pushes_.end()) continue;
    for (const auto& [partition, gradient] : held->second) {
      ++arrived_[static_cast<size_t>(partition)];
    }
  }
  std::vector<FoldJob> folds;
  for (size_t p = 0; p < arrived_.size(); ++p) {
    if (std::optional<FoldJob> fold = FoldIfComplete(static_cast<int32_t>(p))) {
      folds.push_back(*std::move(fold));
    }
  }
  return folds;
}

std::optional<FoldJob> FoldStage::FoldIfComplete(int32_t partition) {
  const std::vector<PushId>& contributors = transaction_->plan().contributors;
  if (transaction_->Started(partition) ||
      arrived_[static_cast<size_t>(partition)] < contributors.size()) {
    return std::nullopt;
  }
  // In the plan's order, which is that of ranks: the sum is folded in it.
  std::vector<HeldGradient> gradients;
  gradients.reserve(contributors.size());
  for (const PushId& push : contributors) {
    auto node = pushes_.at(push).extract(partition);
    gradients.push_back(std::move(node.mapped()));
  }
  return transaction_->Fold(partition, std::move(gradients));
}

FoldReport FoldStage::FoldDone(FoldResult result) {
  FoldReport report{.transaction = result.transaction,
                    .partition = result.partition,
                    .gradient_bytes = result.gradient_bytes};
  // A fold of a transaction that is over goes into nothing, but its bytes are
  // free now, and the coordinator counts them.
  if (!transaction_.has_value() || transaction_->id() != report.transaction) {
    return report;
  }
  report.nonfinite = result.nonfinite;
  report.norms = std::move(result.norms);
  transaction_->Done(std::move(result));
  report.prepared = transaction_->result(report.partition).has_value();
  return report;
}

std::optional<Transaction> FoldStage::Commit(int64_t transaction) {
  COHORT_CHECK(transaction_.has_value() && transaction_->id() == transaction,
               absl::StrCat("transaction ", transaction, " is not prepared"));
  for (const PushId& push : transaction_->plan().contributors) {
    pushes_.erase(push);
  }
  return std::exchange(transaction_, std::nullopt);
}

std::optional<Transaction> FoldStage::Abort(int64_t transaction) {
  if (!transaction_.has_value() || transaction_->id() != transaction) {
    return std::nullopt;
  }
  // Folds have taken all of some pushes, which nothing would drop any more.
  for (const PushId& push : transaction_->plan().contributors) {
    const auto held = pushes_.find(push);
    if (held != pushes_.end() && held->second.empty()) pushes_.erase(held);
  }
  return std::exchange(transaction_, std::nullopt);
}

}  // namespace cohort
