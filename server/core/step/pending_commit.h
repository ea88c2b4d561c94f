#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/core/data/commit_plan.h"
#include "server/core/data/data_shard.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/optimizer/fold_job.h"

namespace cohort {

// A commit while the data shard prepares it: what has been reported of it.
class PendingCommit {
 public:
  explicit PendingCommit(const CommitPlan& plan);

  int64_t transaction() const { return transaction_; }
  double learning_rate() const { return learning_rate_; }
  Version base_version() const { return base_->version; }

  // All gradients of `partition` have come, so the data shard folds it: it goes
  // by the same rule, and this keeps the budget of bytes in step with it.
  // Partitions without gradients count as begun.
  bool HasBegun(int32_t partition) const {
    return begun_[static_cast<size_t>(partition)];
  }
  void Begin(int32_t partition);

  // False if the report is of another transaction.
  bool Take(FoldReport report);
  // Every partition is prepared, or the commit will change nothing.
  bool complete() const { return missing_ == 0 || given_up_; }
  // Absent: not prepared yet, or without gradients.
  const std::optional<FoldResult>& result(int32_t partition) const {
    return results_[static_cast<size_t>(partition)];
  }
  const std::optional<NonfiniteGradient>& nonfinite() const {
    return nonfinite_;
  }
  std::optional<double> gradient_norm() const { return gradient_norm_; }

  // The next version: the plan's base with everything that was prepared.
  SharedSnapshot Next(VersionExtras extras) const;

 private:
  int64_t transaction_ = 0;
  double learning_rate_ = 0;
  SharedSnapshot base_;
  std::vector<bool> begun_;
  std::vector<std::optional<FoldResult>> results_;
  int32_t missing_ = 0;
  std::optional<NonfiniteGradient> nonfinite_;
  std::optional<double> gradient_norm_;
  bool given_up_ = false;
};

}  // namespace cohort
