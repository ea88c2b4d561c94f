#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/settings/options.h"

namespace cohort {

// The moments of all batch-norm calls of one rank in one step, ascending by
// (layer, call).
struct RankMoments {
  Rank rank;
  // Images behind them.
  int64_t samples = 0;
  // From the staleness rule, in [0, 1]; equal to the weight of the push's
  // gradient.
  double weight = 1;
  std::vector<CallMoments> calls;
  // See PushClosing::changes.
  std::vector<LayerChanges> changes;
};

// One call, all ranks combined.
struct CombinedCall {
  CallPlace place;
  std::shared_ptr<const Moments> moments;
};
using CombinedMoments = std::vector<CombinedCall>;

// The moments of each call, ascending by (layer, call), in rank order. Ranks
// that did not make a call have no part in it.
using MomentsByCall =
    std::map<std::pair<int32_t, int32_t>, std::vector<const Moments*>>;
MomentsByCall ByCall(const std::vector<RankMoments>& ranks);

// Folds batch moments into moving statistics, one update a call. Pure
// functions of their arguments; the caller keeps the state.
//
// Source: BN statistics of PyTorch and Keras (StatisticsConvention); for
// `async` the weight a_k = 1-(1-a)^(n_k/n_ref), so that W pushes of n_ref/W
// decay like one synchronous step. Each update is a convex combination of what
// was held and what arrives, one push at a time, so no number of racing
// workers can make it diverge.
class MovingStatistics {
 public:
  MovingStatistics() = default;
  // With `mixture_variance` the variance is that of the mixture of what was
  // held, with weight 1-a, and the batch, with weight a:
  //   v <- (1-a)v + a*v_k + a(1-a)(m_k-m)^2.
  // PyTorch and Keras omit the last term, and so under-estimate the variance
  // where the batches' means differ.
  MovingStatistics(StatisticsKind kind, std::vector<BatchNormSpec> layers,
                   bool mixture_variance = false);

  // One synchronous step: `ranks` in rank order.
  // kSync combines, for each call, the moments of the ranks that made it (Chan,
  // rank order, float64); kChief uses those of the first rank, so a layer that
  // this rank did not call does not move; kAsync folds rank after rank.
  // kAfter leaves everything as it is. A layer that no rank called does not
  // move. For local steps see ApplyLocalSteps.
  // `samples_reference` is the samples of a nominal global step (kAsync).
  // `combined` has what kSync would combine, call by call, where a rendezvous
  // has done so already; else it is empty. Then kSync needs no moments of the
  // ranks. `changes` are what kSync does in place of one update a call; see
  // AgreeOnChanges.
  void ApplyStep(const std::vector<RankMoments>& ranks,
                 int64_t samples_reference,
                 std::vector<LayerStatistics>& statistics,
                 const CombinedMoments& combined = {},
                 const std::vector<LayerChanges>& changes = {}) const;

  // One asynchronous push: a_k is multiplied by its weight. kChief ignores
  // ranks other than `chief`.
  void ApplyPush(const RankMoments& push, Rank chief, int64_t samples_reference,
                 std::vector<LayerStatistics>& statistics) const;

 private:
  struct Weighting {
    // n_k/n_ref: 1 for a whole step.
    double share = 1;
    // Multiplies the batch's weight.
    double damping = 1;
  };
  // Weight of a layer's batch number `num_batches_tracked`, from 1. `momentum`
  // is absent for the cumulative average.
  static double BatchWeight(const std::optional<double>& momentum,
                            Weighting weighting, int64_t num_batches_tracked);
  // `call`: the settings of its module; null: as registered.
  void Update(int32_t layer, const Moments& moments, const TrainingCall* call,
              Weighting weighting, LayerStatistics& statistics) const;
  void AddPush(const RankMoments& push,
               const std::vector<LayerChanges>& changes,
               int64_t samples_reference,
               std::vector<LayerStatistics>& statistics) const;
  // The changes of one layer, in their order. `combined` are its calls.
  void Replay(const LayerChanges& changes,
              const std::vector<const CombinedCall*>& combined,
              LayerStatistics& statistics) const;

  StatisticsKind kind_ = StatisticsKind::kSync;
  std::vector<BatchNormSpec> layers_;
  bool mixture_variance_ = false;
};

}  // namespace cohort
