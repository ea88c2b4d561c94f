#include "server/core/optimizer/gradient_scales.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "common/name_pattern.h"
#include "kernels/optimizer_rules.h"

namespace cohort {
namespace {

bool Matches(const std::vector<std::string>& patterns,
             const ParameterSpec& parameter) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&parameter](const std::string& pattern) {
                       return MatchesPattern(pattern, parameter.name);
                     });
}

// What is not decayed by default is not adapted either.
bool Adapts(const OptimizerOptions& options, const ParameterSpec& parameter) {
  return !parameter.decay_exempt && !Matches(options.no_decay, parameter);
}

// The rule's scale of whole parameters; 1 where either norm is 0, as a
// parameter that starts at 0 could never leave it, and for parameters that are
// not adapted.
std::vector<double> TrustRatios(const GradientNorms& norms, double clip,
                                const GroupOptions& groups,
                                const ModelLayout& layout,
                                const std::vector<Partition>& partitions) {
  const OptimizerOptions& o = groups.options();
  const std::vector<ParameterSpec>& parameters = layout.parameters;
  std::vector<double> ratios(parameters.size(), 1.0);
  std::vector<SliceNorm> sums(parameters.size());
  for (size_t p = 0; p < norms.size(); ++p) {
    for (size_t i = 0; i < norms[p].size(); ++i) {
      const Slice& slice = partitions[p].slices[i];
      SliceNorm& sum = sums[static_cast<size_t>(slice.parameter)];
      sum.gradient += norms[p][i].gradient;
      sum.weights += norms[p][i].weights;
    }
  }
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (!Adapts(o, parameters[k])) continue;
    const double weights = std::sqrt(sums[k].weights);
    const double gradient = clip * std::sqrt(sums[k].gradient);
    if (weights == 0 || gradient == 0) continue;
    ratios[k] = kernels::RuleOf(o.kind).trust_ratio(
        groups.NumbersOf(parameters[k]), weights, gradient,
        groups.DecayOf(parameters[k]));
  }
  return ratios;
}

}  // namespace

bool AdaptsRates(OptimizerKind kind) {
  return kernels::RuleOf(kind).trust_ratio != nullptr;
}

bool NeedsNorms(const OptimizerOptions& optimizer) {
  return optimizer.clip_norm > 0 || AdaptsRates(optimizer.kind);
}

bool MeasuresUpdates(OptimizerKind kind) {
  return kernels::RuleOf(kind).adapts_update;
}

double NormOf(const GradientNorms& norms) {
  double squares = 0;
  for (const std::vector<SliceNorm>& partition : norms) {
    for (const SliceNorm& norm : partition) squares += norm.gradient;
  }
  return std::sqrt(squares);
}

GradientScales ScalesOf(const GradientNorms& norms,
                        const GroupOptions& optimizer,
                        const ModelLayout& layout,
                        const std::vector<Partition>& partitions) {
  const double norm = NormOf(norms);
  const double norm_max = optimizer.options().clip_norm;
  const double clip = norm_max > 0 && norm > norm_max ? norm_max / norm : 1.0;
  GradientScales scales{.clip = clip};
  const OptimizerKind kind = optimizer.options().kind;
  if (AdaptsRates(kind) && !MeasuresUpdates(kind)) {
    scales.trust_ratios =
        TrustRatios(norms, clip, optimizer, layout, partitions);
  }
  return scales;
}

std::vector<double> UpdateRatios(const GradientNorms& norms,
                                 const GroupOptions& optimizer,
                                 const ModelLayout& layout,
                                 const std::vector<Partition>& partitions) {
  return TrustRatios(norms, /*clip=*/1, optimizer, layout, partitions);
}

bool IsDecayed(const OptimizerOptions& options,
               const ParameterSpec& parameter) {
  return !Matches(options.no_decay, parameter) &&
         (options.decay_everything || !parameter.decay_exempt);
}

}  // namespace cohort
