#pragma once

#include <cstdint>
#include <vector>

#include "common/assignment.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/options.h"

namespace cohort {

// The moments of all batch-norm calls of one rank in one step, ascending by
// (layer, call).
struct RankMoments {
  Rank rank;
  // Images behind them.
  int64_t samples = 0;
  std::vector<CallMoments> calls;
};

// Folds batch moments into moving statistics, one update a call. Pure
// functions of their arguments; the caller keeps the state.
//
// Source: BN statistics of PyTorch and Keras (StatisticsConvention); for
// `async` the weight a_k = 1-(1-a)^(n_k/n_ref), so that W pushes of n_ref/W
// decay like one synchronous step.
class MovingStatistics {
 public:
  MovingStatistics() = default;
  MovingStatistics(StatisticsKind kind, std::vector<BatchNormSpec> layers);

  // One synchronous step: `ranks` in rank order, each with the same calls.
  // kSync combines the ranks' moments per call (Chan, rank order, float64);
  // kChief uses the first rank's; kAsync folds rank after rank.
  // `samples_reference` is the samples of a nominal global step (kAsync).
  void ApplyStep(const std::vector<RankMoments>& ranks,
                 int64_t samples_reference,
                 std::vector<LayerStatistics>& statistics) const;

  // One asynchronous push. kChief ignores ranks other than `chief`.
  void ApplyPush(const RankMoments& push, Rank chief, int64_t samples_reference,
                 std::vector<LayerStatistics>& statistics) const;

 private:
  struct Weighting {
    // n_k/n_ref: 1 for a whole step.
    double share = 1;
  };
  void Update(int32_t layer, const Moments& moments, Weighting weighting,
              LayerStatistics& statistics) const;

  StatisticsKind kind_ = StatisticsKind::kSync;
  std::vector<BatchNormSpec> layers_;
};

}  // namespace cohort
