#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/core/data/commit_plan.h"
#include "server/core/data/data_shard.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/optimizer/fold_job.h"
#include "server/core/optimizer/gradient_scales.h"
#include "server/core/options.h"

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
  // What the second of two passes takes from the norms of the first: once, as
  // soon as that has ended everywhere, unless a gradient was not finite.
  std::optional<GradientScales> TakeScales();
  // Every partition is prepared, or the commit will change nothing.
  bool complete() const { return missing_ == 0 || given_up_; }
  // Absent: not prepared yet, or without gradients.
  const std::optional<FoldResult>& result(int32_t partition) const {
    return results_[static_cast<size_t>(partition)];
  }
  const std::optional<NonfiniteGradient>& nonfinite() const {
    return nonfinite_;
  }
  // Norm of the mean gradient before clipping and damping; known after the
  // first of two passes.
  std::optional<double> gradient_norm() const { return gradient_norm_; }

  // The next version: the plan's base with everything that was prepared.
  SharedSnapshot Next(VersionExtras extras) const;

 private:
  // The first pass over a partition has ended.
  void TakeNorms(const FoldReport& report);

  int64_t transaction_ = 0;
  double learning_rate_ = 0;
  SharedModel model_;
  OptimizerOptions optimizer_;
  SharedSnapshot base_;
  std::vector<bool> begun_;
  std::vector<std::optional<FoldResult>> results_;
  int32_t missing_ = 0;
  std::optional<NonfiniteGradient> nonfinite_;
  // With two passes, by partition: whether the norms are still to come.
  GradientNorms norms_;
  std::vector<bool> norms_missing_;
  int32_t norms_missing_count_ = 0;
  std::optional<GradientScales> scales_;
  std::optional<double> gradient_norm_;
  // The second pass is left out, because the gradient is not finite.
  bool given_up_ = false;
};

}  // namespace cohort
