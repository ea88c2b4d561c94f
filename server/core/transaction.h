#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/effects.h"
#include "server/core/optimizer/fold_job.h"
#include "server/core/optimizer/mask.h"
#include "server/core/options.h"
#include "server/core/push.h"

namespace cohort {

// One atomic change of all partitions: makes the folds, collects their
// results, and makes the next snapshot of them.
//
// Clipping and LARS need the norms of all gradients before anything is
// updated, so then each partition is folded in two passes; see Done.
class Transaction {
 public:
  struct Plan {
    // Distinguishes this one from those that were given up.
    int64_t id = 0;
    SharedModel model;
    // What is changed; outlives nothing, being immutable.
    SharedSnapshot base;
    OptimizerOptions optimizer;
    double learning_rate = 0;
    // Of the summed losses of all contributors. 0: there was nothing to learn
    // from, and weights and slots stay as they are, as where no contributor
    // has a gradient.
    double loss_weight = 0;
    // What stays as it is. Null: nothing.
    SharedMask mask;
    // Delay compensation with the weights that were read; null: none.
    SharedSnapshot read;
    double compensation = 0;
    bool adaptive = false;
    // In (0, 1]: damps the mean gradient, after compensation and clipping. The
    // gradient and not the rate: under momentum a gradient acts through the
    // velocity for many commits, each with a rate of its own, and what it
    // does in all is damped by exactly this.
    double weight = 1;
  };

  explicit Transaction(Plan plan);

  int64_t id() const { return plan_.id; }
  double learning_rate() const { return plan_.learning_rate; }

  bool Started(int32_t partition) const {
    return started_[static_cast<size_t>(partition)];
  }
  // The fold of `partition`, which must not have started, over the gradients
  // of `pushes` (rank order), which it takes.
  FoldJob Fold(int32_t partition,
               const std::vector<std::pair<Rank, Push*>>& pushes);
  // A fold of this transaction has ended; each of its folds comes once.
  // Returns the folds of the second pass once the first has ended everywhere,
  // otherwise none.
  std::vector<FoldJob> Done(FoldResult result);

  // All folds have ended.
  bool complete() const { return missing_ == 0; }
  // Absent: not folded to the end yet, or frozen.
  const std::optional<FoldResult>& result(int32_t partition) const {
    return results_[static_cast<size_t>(partition)];
  }
  // The first that was seen.
  const std::optional<NonfiniteGradient>& nonfinite() const {
    return nonfinite_;
  }
  // Of the mean gradient, before it was clipped and damped; known after the
  // first pass of a clipped transaction.
  std::optional<double> gradient_norm() const { return gradient_norm_; }

  // The next version: `base` with the results of all folds.
  SharedSnapshot Next(StatisticsSets statistics) const;

 private:
  bool two_passes() const;
  // Of one slice of `partition`, as far as it depends on no norm.
  SliceStep StepOf(int32_t partition, size_t slice, bool absent) const;
  std::vector<FoldJob> SecondPass();
  // What the clipped gradient of each parameter is multiplied by; 1 for those
  // that are not adapted.
  std::vector<double> TrustRatios(double clip) const;

  Plan plan_;
  double gradient_scale_ = 0;
  // By partition, between the passes: the job of the second one but for the
  // norms, and the norms.
  std::vector<FoldJob> pending_;
  std::vector<std::vector<SliceNorm>> norms_;
  int32_t missing_first_ = 0;
  std::optional<double> gradient_norm_;
  // By partition; frozen partitions count as started and are never folded.
  std::vector<bool> started_;
  std::vector<std::optional<FoldResult>> results_;
  int32_t missing_ = 0;
  std::optional<NonfiniteGradient> nonfinite_;
};

// Whether weight decay applies to `parameter`.
bool Decays(const OptimizerOptions& options, const ParameterSpec& parameter);

// The version after `base` with its weights unchanged.
SharedSnapshot Successor(const ModelSnapshot& base, StatisticsSets statistics);

}  // namespace cohort
