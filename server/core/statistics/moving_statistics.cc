#include "server/core/statistics/moving_statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/moments_fold.h"
#include "kernels/moving_average.h"
#include "server/core/statistics/local_statistics.h"

namespace cohort {

MovingStatistics::MovingStatistics(StatisticsKind kind,
                                   std::vector<BatchNormSpec> layers,
                                   bool mixture_variance)
    : kind_(kind),
      layers_(std::move(layers)),
      mixture_variance_(mixture_variance) {}

double MovingStatistics::BatchWeight(const std::optional<double>& momentum,
                                     Weighting weighting,
                                     int64_t num_batches_tracked) {
  if (!momentum.has_value()) {
    // However stale, the first batch is all that is known.
    if (num_batches_tracked == 1) return 1;
    return weighting.damping / static_cast<double>(num_batches_tracked);
  }
  const double a = *momentum;
  // A whole step uses a itself: 1-(1-a)^1 is not a in floating point.
  return weighting.damping *
         (weighting.share == 1 ? a : 1 - std::pow(1 - a, weighting.share));
}

void MovingStatistics::Update(int32_t layer, const Moments& moments,
                              const TrainingCall* call, Weighting weighting,
                              LayerStatistics& statistics) const {
  const BatchNormSpec& spec = layers_[static_cast<size_t>(layer)];
  // With own data, a push may say that it has no samples.
  if (!spec.track_statistics || moments.count == 0 || weighting.share == 0) {
    return;
  }
  if (call == nullptr || call->counts) ++statistics.num_batches_tracked;
  if (call != nullptr && !call->moves) return;
  const double a =
      BatchWeight(call == nullptr ? spec.momentum : call->momentum, weighting,
                  std::max<int64_t>(statistics.num_batches_tracked, 1));
  const auto count = static_cast<double>(moments.count);
  // The unbiased divisor is that of the nominal step the batch stands for,
  // so that W partial pushes agree with one synchronous step.
  double divisor = count;
  if (spec.convention == StatisticsConvention::kPyTorch) {
    const double nominal = count / weighting.share;
    // One element has no unbiased variance: keep what is known.
    divisor = nominal <= 1           ? 0
              : weighting.share == 1 ? count - 1
                                     : count * (nominal - 1) / nominal;
  }
  std::vector<double> held;
  if (mixture_variance_) held = statistics.mean;
  kernels::UpdateMovingAverage({.weight = a,
                                .divisor = divisor,
                                .channels = statistics.mean.size(),
                                .batch_mean = moments.first.data(),
                                .batch_m2 = moments.second.data()},
                               statistics.mean.data(),
                               statistics.variance.data());
  if (!mixture_variance_ || divisor == 0) return;
  for (size_t c = 0; c < held.size(); ++c) {
    const double delta = moments.first[c] - held[c];
    statistics.variance[c] = static_cast<float>(statistics.variance[c] +
                                                a * (1 - a) * delta * delta);
  }
}

void MovingStatistics::Replay(const LayerChanges& changes,
                              const std::vector<const CombinedCall*>& combined,
                              LayerStatistics& statistics) const {
  auto write = changes.writes.begin();
  const auto write_before = [&](size_t call) {
    for (; write != changes.writes.end() &&
           static_cast<size_t>(write->after_calls) <= call;
         ++write) {
      statistics = write->values;
    }
  };
  for (size_t i = 0; i < changes.calls.size(); ++i) {
    write_before(i);
    const TrainingCall& call = changes.calls[i];
    const auto met = std::find_if(
        combined.begin(), combined.end(), [&](const CombinedCall* other) {
          const CallPlace& place = other->place;
          if (place.part < 0) return static_cast<size_t>(place.call) == i;
          return place.part == call.part && place.call == call.call &&
                 place.site == call.site;
        });
    if (met == combined.end()) continue;
    Update(changes.layer, *(*met)->moments, &call, {}, statistics);
  }
  write_before(changes.calls.size());
}

MomentsByCall ByCall(const std::vector<RankMoments>& ranks) {
  MomentsByCall calls;
  for (const RankMoments& rank : ranks) {
    // Both are ascending, and almost always the same calls.
    auto at = calls.begin();
    for (const CallMoments& call : rank.calls) {
      const std::pair<int32_t, int32_t> key(call.layer, call.call);
      while (at != calls.end() && at->first < key) ++at;
      if (at == calls.end() || at->first != key) {
        at = calls.emplace_hint(at, key, std::vector<const Moments*>());
        at->second.reserve(ranks.size());
      }
      at->second.push_back(&call.moments);
    }
  }
  return calls;
}

namespace {

// The moments of all ranks, call by call. Calls are numbered through the parts
// of the step: their part is -1.
CombinedMoments Combine(const std::vector<RankMoments>& ranks) {
  CombinedMoments combined;
  for (const auto& [at, parts] : ByCall(ranks)) {
    combined.push_back(
        {.place = {.part = -1, .layer = at.first, .call = at.second},
         .moments =
             std::make_shared<const Moments>(kernels::FoldForward(parts))});
  }
  return combined;
}

// The settings of the modules at a call; null: as registered.
const TrainingCall* CallOf(const std::vector<LayerChanges>& changes,
                           const CallMoments& moments) {
  for (const LayerChanges& layer : changes) {
    if (layer.layer != moments.layer) continue;
    const auto at = static_cast<size_t>(moments.call);
    return at < layer.calls.size() ? &layer.calls[at] : nullptr;
  }
  return nullptr;
}

}  // namespace

void MovingStatistics::ApplyStep(
    const std::vector<RankMoments>& ranks, int64_t samples_reference,
    std::vector<LayerStatistics>& statistics, const CombinedMoments& combined,
    const std::vector<LayerChanges>& changes) const {
  if (ranks.empty() || !MovesInTraining(kind_)) return;
  if (AreOfLocalSteps(ranks)) {
    ApplyLocalSteps(ranks, layers_, statistics);
    return;
  }
  if (kind_ == StatisticsKind::kAsync) {
    for (const RankMoments& rank : ranks) {
      AddPush(rank, changes, samples_reference, statistics);
    }
    return;
  }
  if (kind_ == StatisticsKind::kChief) {
    for (const CallMoments& call : ranks.front().calls) {
      Update(call.layer, call.moments, CallOf(changes, call), {},
             statistics[static_cast<size_t>(call.layer)]);
    }
    return;
  }
  const CombinedMoments own = combined.empty() ? Combine(ranks) : combined;
  std::vector<std::vector<const CombinedCall*>> calls(statistics.size());
  for (const CombinedCall& call : own) {
    calls[static_cast<size_t>(call.place.layer)].push_back(&call);
  }
  auto change = changes.begin();
  for (size_t layer = 0; layer < statistics.size(); ++layer) {
    if (change != changes.end() &&
        static_cast<size_t>(change->layer) == layer) {
      Replay(*change++, calls[layer], statistics[layer]);
      continue;
    }
    for (const CombinedCall* call : calls[layer]) {
      Update(call->place.layer, *call->moments, nullptr, {}, statistics[layer]);
    }
  }
}

void MovingStatistics::AddPush(const RankMoments& push,
                               const std::vector<LayerChanges>& changes,
                               int64_t samples_reference,
                               std::vector<LayerStatistics>& statistics) const {
  const Weighting weighting{
      .share = kind_ == StatisticsKind::kChief
                   ? 1
                   : static_cast<double>(push.samples) /
                         static_cast<double>(samples_reference),
      .damping = push.weight};
  for (const CallMoments& call : push.calls) {
    Update(call.layer, call.moments, CallOf(changes, call), weighting,
           statistics[static_cast<size_t>(call.layer)]);
  }
}

void MovingStatistics::ApplyPush(
    const RankMoments& push, Rank chief, int64_t samples_reference,
    std::vector<LayerStatistics>& statistics) const {
  if (!MovesInTraining(kind_)) return;
  if (kind_ == StatisticsKind::kChief && push.rank != chief) return;
  AddPush(push, push.changes, samples_reference, statistics);
}

}  // namespace cohort
