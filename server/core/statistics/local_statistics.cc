#include "server/core/statistics/local_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/moving_average.h"

namespace cohort {
namespace {

// Moments of all ranks so far, by weight.
struct Weighted {
  double weight = 0;
  int32_t updates = 0;
  std::vector<double> mean;
  // sum(w (v + (m - mean)^2)).
  std::vector<double> second;
};

// Source: as kernels::FoldForward, with weights in place of counts.
void Add(const CallMoments& call, Weighted& total) {
  const Moments& part = call.moments;
  total.updates = std::max(total.updates, call.updates);
  total.mean.resize(part.first.size());
  total.second.resize(part.first.size());
  if (call.weight == 0 || part.count == 0) return;
  const double weight = total.weight + call.weight;
  const double scale = call.weight / static_cast<double>(part.count);
  for (size_t c = 0; c < part.first.size(); ++c) {
    const double off = part.first[c] - total.mean[c];
    total.mean[c] += off * (call.weight / weight);
    total.second[c] += scale * part.second[c] +
                       off * off * (total.weight * call.weight / weight);
  }
  total.weight = weight;
}

void Update(const Weighted& by, const BatchNormSpec& spec,
            LayerStatistics& statistics) {
  const auto updates = static_cast<double>(by.updates);
  statistics.num_batches_tracked += by.updates;
  if (by.weight == 0) return;
  const double a =
      spec.momentum.has_value()
          ? 1 - std::pow(1 - *spec.momentum, updates)
          : updates / static_cast<double>(statistics.num_batches_tracked);
  const std::vector<double> held = statistics.mean;
  std::vector<double> second = by.second;
  for (size_t c = 0; c < held.size(); ++c) {
    const double off = by.mean[c] - held[c];
    second[c] += by.weight * (1 - a) * off * off;
  }
  kernels::UpdateMovingAverage({.weight = a,
                                .divisor = by.weight,
                                .channels = held.size(),
                                .batch_mean = by.mean.data(),
                                .batch_m2 = second.data()},
                               statistics.mean.data(),
                               statistics.variance.data());
}

}  // namespace

bool AreOfLocalSteps(const std::vector<RankMoments>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const RankMoments& rank) {
    return !rank.calls.empty() && rank.calls.front().updates > 0;
  });
}

void ApplyLocalSteps(const std::vector<RankMoments>& ranks,
                     const std::vector<BatchNormSpec>& layers,
                     std::vector<LayerStatistics>& statistics) {
  std::vector<Weighted> totals(layers.size());
  for (const RankMoments& rank : ranks) {
    for (const CallMoments& call : rank.calls) {
      Add(call, totals[static_cast<size_t>(call.layer)]);
    }
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (!layers[layer].track_statistics || totals[layer].updates == 0) continue;
    Update(totals[layer], layers[layer], statistics[layer]);
  }
}

}  // namespace cohort
