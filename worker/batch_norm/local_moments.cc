#include "worker/batch_norm/local_moments.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace cohort {
namespace {

// The calls of one layer, numbered through the steps of the whole cohort.
struct Numbering {
  std::vector<int64_t> of_call;
  int32_t updates = 0;
};

Numbering NumberCalls(absl::Span<const int32_t> counts, size_t layers,
                      size_t layer) {
  Numbering numbering;
  int32_t before = 0;
  for (size_t part = 0; part * layers < counts.size(); ++part) {
    const absl::Span<const int32_t> of_part =
        counts.subspan(part * layers, layers);
    const bool any = std::any_of(of_part.begin(), of_part.end(),
                                 [](int32_t count) { return count > 0; });
    if (any) before = of_part[layer];
    for (int32_t call = 0; call < before; ++call) {
      if (any) numbering.of_call.push_back(numbering.updates);
      ++numbering.updates;
    }
  }
  return numbering;
}

// The factor of a variance that divides by the count.
double BesselFactor(const BatchNormSpec& layer, int64_t count,
                    int64_t members) {
  const auto n = static_cast<double>(count * members);
  return layer.convention == StatisticsConvention::kPyTorch && n > 1
             ? n / (n - 1)
             : 1;
}

CallMoments CombineLayer(absl::Span<const CallMoments> calls,
                         const Numbering& numbering, const BatchNormSpec& layer,
                         int64_t members) {
  CallMoments all{.layer = calls.front().layer, .updates = numbering.updates};
  std::vector<double> weights;
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto n = static_cast<double>(calls[i].moments.count);
    const double later =
        static_cast<double>(numbering.updates - 1 - numbering.of_call[i]);
    weights.push_back(layer.momentum.has_value()
                          ? n * *layer.momentum *
                                std::pow(1 - *layer.momentum, later)
                          : n);
    all.weight += weights.back();
    all.moments.count += calls[i].moments.count;
  }
  const size_t channels = calls.front().moments.first.size();
  all.moments.first.resize(channels);
  all.moments.second.resize(channels);
  double total = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Moments& one = calls[i].moments;
    const auto n = static_cast<double>(one.count);
    const double weight = all.weight > 0 ? weights[i] : n;
    if (weight == 0) continue;
    const double factor = BesselFactor(layer, one.count, members) * weight / n;
    const double share = weight / (total + weight);
    for (size_t c = 0; c < channels; ++c) {
      const double off = one.first[c] - all.moments.first[c];
      all.moments.first[c] += off * share;
      all.moments.second[c] +=
          factor * one.second[c] + off * off * total * share;
    }
    total += weight;
  }
  if (total == 0) return all;
  const double scale = static_cast<double>(all.moments.count) / total;
  for (double& second : all.moments.second) second *= scale;
  return all;
}

}  // namespace

std::vector<CallMoments> CombineLocalSteps(
    absl::Span<const CallMoments> calls, absl::Span<const int32_t> counts,
    absl::Span<const BatchNormSpec> layers, int64_t members) {
  std::vector<CallMoments> combined;
  while (!calls.empty()) {
    const int32_t layer = calls.front().layer;
    const auto end =
        std::find_if(calls.begin(), calls.end(),
                     [layer](const auto& call) { return call.layer != layer; });
    const auto size = static_cast<size_t>(end - calls.begin());
    const auto at = static_cast<size_t>(layer);
    combined.push_back(CombineLayer(calls.first(size),
                                    NumberCalls(counts, layers.size(), at),
                                    layers[at], members));
    calls.remove_prefix(size);
  }
  return combined;
}

}  // namespace cohort
