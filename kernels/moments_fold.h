#pragma once

#include "absl/types/span.h"
#include "common/moments.h"

namespace cohort::kernels {

// Moments of the concatenated batch, from (count, mean, M2) of its parts.
//
// Shapes: all parts have [channels] in both vectors, parts with count 0 too;
//   so has the answer. No parts: count 0 and empty vectors.
// Order: as given (ranks ascending), in float64: same parts, same bits.
// Parts with count 0 are skipped; if all are, the answer is zeros. A NaN or
// infinity stays in its channel.
// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm
//   for computing sample variances", 1979, equation 2.1.
Moments FoldForward(absl::Span<const Moments* const> in_rank_order);

// One part of such a fold, for callers that fold as parts arrive. `total` is of
// the parts' shape, and zeros with count 0 before the first part. Adding all
// parts in order gives the bits of FoldForward.
void AddForward(const Moments& part, Moments& total);
// The same for sums of the backward pass: counts and both vectors are added.
void AddBackward(const Moments& part, Moments& total);

}  // namespace cohort::kernels
