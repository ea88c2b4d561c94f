#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/core/model/commands.h"
#include "server/core/model/model_version.h"
#include "server/core/optimizer/fold_report.h"
#include "server/core/optimizer/gradient_scales.h"
#include "server/core/optimizer/group_options.h"
#include "server/core/settings/options.h"

namespace cohort {

// A commit while the shards prepare it: what has been reported of it.
class PendingCommit {
 public:
  // `optimizer` is that of the settings in force.
  PendingCommit(const CommitPlan& plan, SharedModel model,
                const OptimizerOptions& optimizer);

  int64_t transaction() const { return transaction_; }
  double learning_rate() const { return learning_rate_; }
  Version base_version() const { return base_version_; }
  // See CommitPlan.
  int32_t update() const { return update_; }
  bool continues() const { return continues_; }

  // All gradients of `partition` have come, so its shard folds it: it goes by
  // the same rule, and this keeps the budget of bytes in step with it.
  // Partitions without gradients count as begun.
  bool HasBegun(int32_t partition) const {
    return begun_[static_cast<size_t>(partition)];
  }
  void Begin(int32_t partition);

  // False if the report is of another transaction.
  bool Take(FoldReport report);
  // Factors of the next pass, from the norms of the one before: once for each,
  // as soon as that has ended everywhere, unless a value was not finite.
  std::optional<GradientScales> TakeScales();
  // Every partition is prepared, or the commit will change nothing.
  bool complete() const { return missing_ == 0 || given_up_; }
  // False also for partitions without gradients.
  bool IsPrepared(int32_t partition) const {
    return prepared_[static_cast<size_t>(partition)];
  }
  // Partitions whose weights of the next version are there.
  bool HasWeights(int32_t partition) const {
    return finite_[static_cast<size_t>(partition)];
  }
  // The last pass was left out everywhere, because a value was not finite.
  bool given_up() const { return given_up_; }
  const std::optional<NonfiniteGradient>& nonfinite() const {
    return nonfinite_;
  }
  // Norm of the mean gradient before clipping and damping; known after the
  // first of several passes.
  std::optional<double> gradient_norm() const { return gradient_norm_; }

 private:
  // A pass that gives norms begins everywhere.
  void AwaitNorms();
  // Such a pass over a partition has ended.
  void TakeNorms(const FoldReport& report);

  int64_t transaction_ = 0;
  double learning_rate_ = 0;
  SharedModel model_;
  GroupOptions optimizer_;
  Version base_version_;
  int32_t update_ = 0;
  bool continues_ = false;
  // By partition.
  std::vector<bool> begun_;
  std::vector<bool> prepared_;
  std::vector<bool> finite_;
  int32_t missing_ = 0;
  std::optional<NonfiniteGradient> nonfinite_;
  // With several passes, by partition: whether the norms of the present one are
  // still to come.
  GradientNorms norms_;
  std::vector<bool> norms_missing_;
  int32_t norms_missing_count_ = 0;
  std::optional<GradientScales> scales_;
  double clip_ = 1;
  std::optional<double> gradient_norm_;
  // The other passes are left out, because a value is not finite.
  bool given_up_ = false;
};

}  // namespace cohort
