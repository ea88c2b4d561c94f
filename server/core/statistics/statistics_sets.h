#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/settings/options.h"
#include "server/core/statistics/kept_forward.h"
#include "server/core/statistics/moving_statistics.h"

namespace cohort {

// The moving statistics of all layers, of one kind.
struct StatisticsSet {
  StatisticsKind kind = StatisticsKind::kSync;
  // One entry a batch-norm layer.
  std::vector<LayerStatistics> layers;
  // kAfter: the version whose activations they describe; absent: nothing was
  // collected yet. Absent for all other kinds, which follow every commit.
  std::optional<Version> collected;

  // True if they are meant for the weights of `version`, which is one that
  // they were kept beside.
  bool Describes(Version version) const {
    return kind != StatisticsKind::kAfter || collected == version;
  }

  friend bool operator==(const StatisticsSet&, const StatisticsSet&) = default;
};

// The sets that a run keeps side by side; the first is exported.
using StatisticsSets = std::vector<StatisticsSet>;

// The kinds that a run keeps: those of the resolved policy, and kAverage if
// there is one.
std::vector<StatisticsKind> KindsKept(const PolicyOptions& policy,
                                      const OptimizerOptions& optimizer);

// Decay of the moving average at the step that starts from `version`: less at
// first, so that the initial weights are soon forgotten.
// Source: the schedule of TensorFlow's ExponentialMovingAverage.
double AverageDecay(double ema_decay, Version version);

// Null if `kind` is not among them.
const StatisticsSet* FindSet(const StatisticsSets& sets, StatisticsKind kind);

// One set a kind, all starting from `layers`.
StatisticsSets StartSets(const std::vector<StatisticsKind>& kinds,
                         const std::vector<LayerStatistics>& layers);

// The sets of `kinds`, in this order: those of `held` as they are; a kind that
// is not held starts from the first held set, for that is what the run was
// evaluated and exported with. `held` is not empty.
StatisticsSets CarryOver(const StatisticsSets& held,
                         const std::vector<StatisticsKind>& kinds);

// The `kinds` that are not held, which CarryOver starts.
std::vector<StatisticsKind> NotHeld(const StatisticsSets& held,
                                    const std::vector<StatisticsKind>& kinds);

// The first layer, in any set, with a mean or a variance that is not finite as
// float32. Each rank's moments may be, and their variance together not.
std::optional<int32_t> FirstOverflow(const StatisticsSets& sets);

// Updates all sets of a run with the same moments. The sets passed in must be
// those of KindsKept.
class KeptStatistics {
 public:
  KeptStatistics() = default;
  // `policy` must be resolved.
  KeptStatistics(const PolicyOptions& policy, double ema_decay,
                 const std::vector<BatchNormSpec>& layers);

  // As MovingStatistics does, set by set; then the average follows the first.
  // `base` is the version before.
  void ApplyStep(const std::vector<RankMoments>& ranks,
                 int64_t samples_reference, Version base, StatisticsSets& sets,
                 const CombinedMoments& combined = {},
                 const std::vector<LayerChanges>& changes = {}) const;
  void ApplyPush(const RankMoments& push, Rank chief, int64_t samples_reference,
                 Version base, StatisticsSets& sets) const;

 private:
  void CheckCount(const StatisticsSets& sets) const;
  void UpdateAverage(Version base, StatisticsSets& sets) const;

  // Moving statistics by kind, in the policy's order.
  std::vector<MovingStatistics> kinds_;
  double ema_decay_ = 0;
};

// The effect of a synchronous step on the statistics: a value, so that any
// thread can compute it. With W ranks it is W times as much work as the layers
// are wide, unless a rendezvous has combined the moments already.
struct StatisticsUpdate {
  Version step;
  Attempt attempt;
  std::shared_ptr<const KeptStatistics> kept;
  // Contributors in rank order. Where moments met in rendezvous, their calls
  // are in `forward`, and come here with the result.
  std::shared_ptr<const std::vector<RankMoments>> moments;
  KeptForward forward;
  // The layers of the model.
  std::shared_ptr<const std::vector<BatchNormSpec>> layers;
  int64_t samples_reference = 0;
  // See MovingStatistics::ApplyStep.
  CombinedMoments combined;
  // The moving statistics before the step; in the result, those after it.
  StatisticsSets sets;
  // Result: an error if the members contradict each other, or if a call had one
  // value a channel; then `sets` are those before the step.
  absl::Status status;
  // Result: FirstOverflow of `sets`, which must then not be committed.
  std::optional<int32_t> overflow;
};

// Channels of all moments in the job.
int64_t ChannelsOf(const StatisticsUpdate& job);

// A pure function of the job.
// Thread safety: safe.
StatisticsUpdate RunStatisticsUpdate(StatisticsUpdate job);

}  // namespace cohort
