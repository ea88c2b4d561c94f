#include "server/core/moving_statistics.h"

#include <cmath>
#include <utility>

#include "kernels/moments_fold.h"

namespace cohort {

MovingStatistics::MovingStatistics(StatisticsKind kind,
                                   std::vector<BatchNormSpec> layers,
                                   bool mixture_variance)
    : kind_(kind),
      layers_(std::move(layers)),
      mixture_variance_(mixture_variance) {}

double MovingStatistics::BatchWeight(const BatchNormSpec& layer,
                                     Weighting weighting,
                                     int64_t num_batches_tracked) {
  if (!layer.momentum.has_value()) {
    // However stale, the first batch is all that is known.
    if (num_batches_tracked == 1) return 1;
    return weighting.damping / static_cast<double>(num_batches_tracked);
  }
  const double a = *layer.momentum;
  // A whole step uses a itself: 1-(1-a)^1 is not a in floating point.
  return weighting.damping *
         (weighting.share == 1 ? a : 1 - std::pow(1 - a, weighting.share));
}

void MovingStatistics::Update(int32_t layer, const Moments& moments,
                              Weighting weighting,
                              LayerStatistics& statistics) const {
  const BatchNormSpec& spec = layers_[static_cast<size_t>(layer)];
  // With own data, a push may say that it has no samples.
  if (!spec.track_statistics || moments.count == 0 || weighting.share == 0) {
    return;
  }
  ++statistics.num_batches_tracked;
  const double a = BatchWeight(spec, weighting, statistics.num_batches_tracked);
  const auto count = static_cast<double>(moments.count);
  // The unbiased divisor is that of the nominal step the batch stands for,
  // so that W partial pushes agree with one synchronous step.
  const double nominal = count / weighting.share;
  const bool unbiased = spec.convention == StatisticsConvention::kPyTorch;
  const bool has_variance = !unbiased || nominal > 1;
  const double scale = unbiased ? nominal / (nominal - 1) / count : 1 / count;
  for (size_t c = 0; c < statistics.mean.size(); ++c) {
    const double delta = moments.first[c] - statistics.mean[c];
    statistics.mean[c] = (1 - a) * statistics.mean[c] + a * moments.first[c];
    // One element has no unbiased variance: keep what is known.
    if (!has_variance) continue;
    statistics.variance[c] =
        (1 - a) * statistics.variance[c] + a * (moments.second[c] * scale);
    if (mixture_variance_) {
      statistics.variance[c] += a * (1 - a) * delta * delta;
    }
  }
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

void MovingStatistics::ApplyStep(const std::vector<RankMoments>& ranks,
                                 int64_t samples_reference,
                                 std::vector<LayerStatistics>& statistics,
                                 const CombinedMoments& combined) const {
  if (ranks.empty() || !MovesInTraining(kind_)) return;
  if (kind_ == StatisticsKind::kAsync) {
    for (const RankMoments& rank : ranks) {
      ApplyPush(rank, ranks.front().rank, samples_reference, statistics);
    }
    return;
  }
  if (kind_ == StatisticsKind::kChief) {
    for (const CallMoments& call : ranks.front().calls) {
      Update(call.layer, call.moments, {},
             statistics[static_cast<size_t>(call.layer)]);
    }
    return;
  }
  for (const CombinedCall& call : combined) {
    Update(call.layer, *call.moments, {},
           statistics[static_cast<size_t>(call.layer)]);
  }
  if (!combined.empty()) return;
  for (const auto& [call, parts] : ByCall(ranks)) {
    Update(call.first, kernels::FoldForward(parts), {},
           statistics[static_cast<size_t>(call.first)]);
  }
}

void MovingStatistics::ApplyPush(
    const RankMoments& push, Rank chief, int64_t samples_reference,
    std::vector<LayerStatistics>& statistics) const {
  if (!MovesInTraining(kind_)) return;
  Weighting weighting{.damping = push.weight};
  if (kind_ == StatisticsKind::kChief) {
    if (push.rank != chief) return;
  } else {
    weighting.share = static_cast<double>(push.samples) /
                      static_cast<double>(samples_reference);
  }
  for (const CallMoments& call : push.calls) {
    Update(call.layer, call.moments, weighting,
           statistics[static_cast<size_t>(call.layer)]);
  }
}

}  // namespace cohort
