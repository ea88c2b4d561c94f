#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/ids.h"

// Reports of folds, from partitions to the core.
namespace cohort {

// Where a non-finite value was found. No rank: every contribution was finite
// and the sum overflowed.
struct NonfiniteGradient {
  std::optional<Rank> rank;
  int32_t partition = 0;
  // Position in Partition::slices.
  int32_t slice = 0;
};

// Sums of squares over the elements of one slice that are not frozen, in
// float64; 0 for skipped slices, and where it was not asked for.
struct SliceNorm {
  // Of the gradient, or of the update where that is measured.
  double gradient = 0;
  double weights = 0;

  friend bool operator==(const SliceNorm&, const SliceNorm&) = default;
};

// Factors of the next pass, from the norms of all partitions of all shards.
struct GradientScales {
  // Factor of the gradient: below 1 if it is clipped.
  double clip = 1;
  // Factor of the clipped gradient and of the weight decay, or of the update
  // (OptimizerRule::trust_ratio), by parameter; empty if no parameter is
  // adapted.
  std::vector<double> trust_ratios;

  friend bool operator==(const GradientScales&,
                         const GradientScales&) = default;
};

// A fold has ended.
struct FoldReport {
  int64_t transaction = 0;
  int32_t partition = 0;
  // Size of the gradients, which are freed by now.
  int64_t gradient_bytes = 0;
  // The partition of the next version is there, if it is finite. Otherwise a
  // pass over it is still to come, or the transaction was given up.
  bool prepared = false;
  std::optional<NonfiniteGradient> nonfinite;
  // After every pass but the last one entry for each slice, otherwise empty.
  std::vector<SliceNorm> norms;
};

}  // namespace cohort
