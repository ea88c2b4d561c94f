#include "server/core/statistics/observation.h"

#include <algorithm>
#include <cmath>

#include "kernels/moments_fold.h"

namespace cohort {
namespace {

// Calls are ascending by layer.
void Keep(int32_t layer, double ratio, std::vector<LayerDrift>& drift) {
  if (drift.empty() || drift.back().layer != layer) {
    drift.push_back({.layer = layer});
  }
  drift.back().ratio = std::max(drift.back().ratio, ratio);
}

}  // namespace

double Drift(const Moments& batch, const std::vector<double>& mean,
             const std::vector<double>& variance, double epsilon) {
  if (batch.count == 0 || mean.empty()) return 0;
  double sum = 0;
  for (size_t c = 0; c < mean.size(); ++c) {
    const double off = batch.first[c] - mean[c];
    sum += off * off / (variance[c] + epsilon);
  }
  return std::sqrt(sum / static_cast<double>(mean.size()));
}

std::vector<LayerDrift> StepDrift(const std::vector<BatchNormSpec>& layers,
                                  const std::vector<RankMoments>& ranks) {
  std::vector<LayerDrift> drift;
  if (ranks.size() < 2) return drift;
  for (const auto& [call, parts] : ByCall(ranks)) {
    Moments all = kernels::FoldForward(parts);
    if (all.count == 0) continue;
    for (double& m2 : all.second) m2 /= static_cast<double>(all.count);
    const int32_t layer = call.first;
    const double epsilon = layers[static_cast<size_t>(layer)].epsilon;
    for (const Moments* part : parts) {
      Keep(layer, Drift(*part, all.first, all.second, epsilon), drift);
    }
  }
  return drift;
}

std::vector<LayerDrift> PushDrift(const std::vector<BatchNormSpec>& layers,
                                  const std::vector<CallMoments>& calls,
                                  const std::vector<LayerStatistics>& moving) {
  std::vector<LayerDrift> drift;
  for (const CallMoments& call : calls) {
    const auto at = static_cast<size_t>(call.layer);
    if (!layers[at].track_statistics) continue;
    Keep(call.layer,
         Drift(call.moments, moving[at].mean, moving[at].variance,
               layers[at].epsilon),
         drift);
  }
  return drift;
}

}  // namespace cohort
