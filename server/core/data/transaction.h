#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model_layout.h"
#include "server/core/data/commit_plan.h"
#include "server/core/data/shard_place.h"
#include "server/core/optimizer/fold_job.h"
#include "server/core/options.h"

namespace cohort {

// One atomic change of all partitions: makes the folds of a plan and collects
// their results.
//
// Clipping and LARS need the norms of all gradients before anything is
// updated, so then each partition is folded in two passes; see Done. Shard 0
// gets the squares of every slice of every shard and sums them in the order of
// the partitions, so that the number of shards changes no bit: sums of sums
// would.
class Transaction {
 public:
  // Folds the partitions that `place` owns.
  explicit Transaction(CommitPlan plan, const ShardPlace& place = {});

  int64_t id() const { return plan_.transaction; }
  const CommitPlan& plan() const { return plan_; }

  bool Started(int32_t partition) const {
    return started_[static_cast<size_t>(partition)];
  }
  // The fold of `partition`, which must not have started, over the gradients
  // of all contributors, in rank order.
  FoldJob Fold(int32_t partition, std::vector<HeldGradient> gradients);
  // A fold of this transaction has ended; each of its folds comes once.
  // Returns the folds of the second pass once the first has ended everywhere,
  // otherwise none: those of a data shard begin with Scale.
  std::vector<FoldJob> Done(FoldResult result);
  // At shard 0: the first pass over another shard's partition has ended, with
  // one norm for each slice, or is not finite. No-op if that is known already.
  // Returns the folds of the second pass, as Done.
  std::vector<FoldJob> DoneElsewhere(
      int32_t partition, std::vector<SliceNorm> norms,
      const std::optional<NonfiniteGradient>& nonfinite);
  // At shard 0, once the second pass has begun.
  const std::optional<GradientScales>& scales() const { return scales_; }
  // At a data shard: its first pass has ended, with finite gradients, and the
  // second has not begun.
  bool AwaitsScales() const;
  // Begins the second pass of a data shard that awaits it.
  std::vector<FoldJob> Scale(const GradientScales& scales);

  // All folds have ended.
  bool complete() const { return missing_ == 0; }
  // The second pass is left out, because the gradient is not finite.
  bool given_up() const { return given_up_; }
  // Absent: not folded to the end yet, frozen, or another shard's.
  const std::optional<FoldResult>& result(int32_t partition) const {
    return results_[static_cast<size_t>(partition)];
  }
  // The first that was seen.
  const std::optional<NonfiniteGradient>& nonfinite() const {
    return nonfinite_;
  }
  // Norm of the mean gradient before clipping and damping; known after the
  // first pass of a clipped transaction.
  std::optional<double> gradient_norm() const { return gradient_norm_; }

 private:
  bool two_passes() const;
  // Share of the new weights in their average; 0 if they do not change.
  float AverageGain() const;
  // The step of one slice of `partition`, without factors that depend on a
  // norm.
  SliceStep StepOf(int32_t partition, size_t slice, bool absent) const;
  bool sums_norms() const { return place_.index == 0; }
  // Begins the second pass if all norms are here.
  std::vector<FoldJob> TakeNorms(int32_t partition,
                                 std::vector<SliceNorm> norms);
  // Of all norms; sets gradient_norm_.
  GradientScales SumNorms();
  std::vector<FoldJob> SecondPass(const GradientScales& scales);
  // Factor of the clipped gradient, by parameter; 1 for parameters that are not
  // adapted. Empty without LARS.
  std::vector<double> TrustRatios(double clip) const;

  CommitPlan plan_;
  ShardPlace place_;
  double gradient_scale_ = 0;
  // By partition, between the passes: the job of the second one but for what
  // depends on norms. `missing_first_` counts the shard's own partitions whose
  // first pass has not ended.
  std::vector<FoldJob> pending_;
  int32_t missing_first_ = 0;
  // At shard 0, by partition of any shard: the norms, and whether they are
  // still to come.
  std::vector<std::vector<SliceNorm>> norms_;
  std::vector<bool> norms_missing_;
  int32_t norms_missing_count_ = 0;
  std::optional<GradientScales> scales_;
  std::optional<double> gradient_norm_;
  // By partition; partitions that are frozen or another shard's count as
  // started and are never folded.
  std::vector<bool> started_;
  std::vector<std::optional<FoldResult>> results_;
  int32_t missing_ = 0;
  bool given_up_ = false;
  std::optional<NonfiniteGradient> nonfinite_;
};

// Weight decay of `parameter`; 0 if it is exempt.
double DecayOf(const OptimizerOptions& options, const ParameterSpec& parameter);

}  // namespace cohort
