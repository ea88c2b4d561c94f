#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "server/core/effects.h"
#include "server/core/optimizer/fold_job.h"
#include "server/core/options.h"
#include "server/core/push.h"

namespace cohort {

// One atomic change of all partitions: makes the folds, collects their
// results, and makes the next snapshot of them.
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
    // Of the summed losses of all contributors. 0: the gradient counts as 0.
    double loss_weight = 0;
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
  // A fold of this transaction has ended. Results come once a partition.
  void Done(FoldResult result);

  // All folds have ended.
  bool complete() const { return missing_ == 0; }
  // Absent: not folded yet, or frozen.
  const std::optional<FoldResult>& result(int32_t partition) const {
    return results_[static_cast<size_t>(partition)];
  }
  // The first that was seen.
  const std::optional<NonfiniteGradient>& nonfinite() const {
    return nonfinite_;
  }

  // The next version: `base` with the results of all folds.
  SharedSnapshot Next(StatisticsSets statistics) const;

 private:
  Plan plan_;
  double gradient_scale_ = 0;
  // By partition; frozen partitions count as started and are never folded.
  std::vector<bool> started_;
  std::vector<std::optional<FoldResult>> results_;
  int32_t missing_ = 0;
  std::optional<NonfiniteGradient> nonfinite_;
};

// The version after `base` with its weights unchanged.
SharedSnapshot Successor(const ModelSnapshot& base, StatisticsSets statistics);

}  // namespace cohort
