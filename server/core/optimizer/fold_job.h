#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "kernels/backend.h"
#include "kernels/optimizer_step.h"

namespace cohort {

// One rank's gradient of one partition.
struct FoldContribution {
  Rank rank;
  ByteRope gradient;
};

// How one slice of the partition is updated.
struct SliceStep {
  int64_t count = 0;
  kernels::SgdStep step;
  // No rank has a gradient for it: weights and velocity stay as they are.
  bool skip = false;
};

// Everything that folding one partition and updating it needs: a value, so
// that it can run on any thread while the state machine goes on.
struct FoldJob {
  // Names the commit this belongs to; echoed in the result.
  int64_t transaction = 0;
  int32_t partition = 0;
  // In rank order.
  std::vector<FoldContribution> contributions;
  std::vector<SliceStep> slices;
  SharedFloats weights;
  // Null without momentum.
  SharedFloats velocity;
};

// Where a non-finite value was found. No rank: every contribution was finite
// and the sum overflowed.
struct NonfiniteGradient {
  std::optional<Rank> rank;
  int32_t partition = 0;
  // Position in Partition::slices.
  int32_t slice = 0;
};

struct FoldResult {
  int64_t transaction = 0;
  int32_t partition = 0;
  // Null if not finite.
  SharedFloats weights;
  SharedFloats velocity;
  // XXH3-64 of the weights.
  uint64_t checksum = 0;
  std::optional<NonfiniteGradient> nonfinite;
};

// Folds in rank order and updates into fresh buffers of `pool`, one pass over
// all memory. A pure function of `job`.
// Thread safety: safe.
FoldResult RunFold(const FoldJob& job, const kernels::Backend& backend,
                   FloatBufferPool& pool);

}  // namespace cohort
