#pragma once

#include <vector>

#include "common/model_layout.h"
#include "common/moments.h"
#include "server/core/statistics/moving_statistics.h"

namespace cohort {

// Whether the moments are those of pushes of local steps.
bool AreOfLocalSteps(const std::vector<RankMoments>& ranks);

// The updates that all local steps of a step make to the moving statistics, as
// one: with U updates of momentum a, and the ranks' moments combined by their
// weights to mean m and variance v,
//
//   A = 1 - (1 - a)^U;  cumulative average: A = U / (updates before + U)
//   mean     <- (1 - A) mean + A m
//   variance <- (1 - A) variance + A v + A (1 - A) (m - mean)^2
//
// This equals U updates of one process with mixture variance (see
// MovingStatistics), if the ranks' shares are equal in all of them: exactly
// with one rank and with biased variances. With the unbiased ones of W ranks,
// the spread of the ranks' means within a step misses their factor N / (N - 1).
// Updating once by moments that count all steps alike would forget U times too
// slowly.
//
// Order: ranks ascending, in float64, rounded to float32. Layers that no rank
// called, or that keep no statistics, stay.
void ApplyLocalSteps(const std::vector<RankMoments>& ranks,
                     const std::vector<BatchNormSpec>& layers,
                     std::vector<LayerStatistics>& statistics);

}  // namespace cohort
