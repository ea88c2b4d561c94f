#pragma once

#include <vector>

#include "common/model_layout.h"
#include "server/core/optimizer/fold_report.h"
#include "server/core/optimizer/group_options.h"
#include "server/core/settings/options.h"

namespace cohort {

// Whether the rule has a trust ratio, for which it needs norms of the weights.
bool AdaptsRates(OptimizerKind kind);

// Clipping and trust ratios need the norms of all gradients before anything is
// updated, so then each partition is folded in two passes.
bool NeedsNorms(const OptimizerOptions& optimizer);

// Whether the ratio is of the norm of the update, which is known once the
// gradient is clipped: in a third pass between the two.
bool MeasuresUpdates(OptimizerKind kind);

// By partition, one entry a slice; empty for partitions without gradients.
using GradientNorms = std::vector<std::vector<SliceNorm>>;

// The norm of the whole mean gradient, before clipping and damping. Squares are
// summed in the order of the partitions, so that it does not depend on who has
// which: sums of sums would.
double NormOf(const GradientNorms& norms);

// Factors of the second pass, from them. `layout` and `partitions` are the
// model's.
GradientScales ScalesOf(const GradientNorms& norms,
                        const GroupOptions& optimizer,
                        const ModelLayout& layout,
                        const std::vector<Partition>& partitions);

// Trust ratios of a rule that measures updates, whose norms these are.
std::vector<double> UpdateRatios(const GradientNorms& norms,
                                 const GroupOptions& optimizer,
                                 const ModelLayout& layout,
                                 const std::vector<Partition>& partitions);

// False if `parameter` is exempt from weight decay.
bool IsDecayed(const OptimizerOptions& options, const ParameterSpec& parameter);

}  // namespace cohort
