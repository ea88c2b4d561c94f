#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "kernels/backend.h"
#include "kernels/optimizer_step.h"
#include "server/core/optimizer/fold_report.h"
#include "server/core/optimizer/mask.h"
#include "server/core/optimizer/slots.h"

namespace cohort {

// One rank's gradient of one partition.
struct FoldContribution {
  Rank rank;
  ByteRope gradient;
  ElementType type = ElementType::kFloat32;
};

// How one slice of the partition is updated.
struct SliceStep {
  int64_t count = 0;
  kernels::RuleStep rule;
  // No rank has a gradient for it, or it is frozen: weights and slots stay as
  // they are.
  bool skip = false;
};

// Some updates need a number over the gradients of all partitions first. They
// are folded in several passes.
enum class FoldPass {
  // Gradient and update.
  kWhole,
  // Only the mean gradient, and the norms of each slice.
  kGradient,
  // Only the norms of each slice's update by that gradient and of its weights.
  kNorms,
  // Only the update, from that gradient.
  kUpdate,
};

// g <- g + lambda * g * g * (w_now - w_read) of the mean gradient g.
struct FoldCompensation {
  // Weights that the gradient was computed at. Null: no compensation.
  SharedFloats read_weights;
  double lambda = 0;
  // Lambda is divided by the root of Slots::mean_square, which is moved on.
  bool adaptive = false;
};

// Everything that folding one partition and updating it needs: a value, so
// that it can run on any thread while the state machine continues.
struct FoldJob {
  // Names the commit this belongs to; echoed in the result.
  int64_t transaction = 0;
  int32_t partition = 0;
  FoldPass pass = FoldPass::kWhole;
  // In rank order. Empty in passes kNorms and kUpdate.
  std::vector<FoldContribution> contributions;
  // Makes the mean gradient of their sum.
  float gradient_scale = 1;
  std::vector<SliceStep> slices;
  SharedFloats weights;
  // The slots that the steps need.
  Slots slots;
  // Share of the new weights in Slots::average, if there is one.
  float average_gain = 0;
  // Null: none are frozen, but for skipped slices.
  SharedRuns frozen;
  FoldCompensation compensation;
  // Pass kGradient gives SliceNorm::weights too.
  bool weight_norms = false;
  // For passes kNorms and kUpdate: the result of pass kGradient.
  SharedFloats gradient;
};

// Sum over the contributions.
int64_t GradientBytes(const FoldJob& job);

struct FoldResult {
  int64_t transaction = 0;
  int32_t partition = 0;
  FoldPass pass = FoldPass::kWhole;
  // Size of the job's contributions, which are freed by now.
  int64_t gradient_bytes = 0;
  // Null if not finite, and after passes kGradient and kNorms.
  SharedFloats weights;
  // As the job's, moved on; after pass kGradient only the mean square is, after
  // pass kNorms none.
  Slots slots;
  // With Slots::remainder: what the job's weights need to become these, in
  // bfloat16, and its XXH3-64. Otherwise empty.
  ByteRope change;
  uint64_t change_checksum = 0;
  std::optional<NonfiniteGradient> nonfinite;
  // Results of pass kGradient: the mean gradient, 0 for frozen elements, and
  // one entry for each slice, as of pass kNorms.
  SharedFloats gradient;
  std::vector<SliceNorm> norms;
};

// Folds in rank order and updates into fresh buffers of `pool`, one pass over
// all memory. A pure function of `job`.
//
// With Slots::remainder the new weights are the old ones and a change that is
// rounded to bfloat16 (Backend::RoundChange).
//
// Frozen elements and skipped slices keep the bits of weights and slots,
// whatever their gradients are. The bits of everything do not depend on where
// the contributions are cut into pieces, and a contribution in bfloat16 gives
// those of the float32 numbers that it stands for.
// Thread safety: safe.
FoldResult RunFold(const FoldJob& job, const kernels::Backend& backend,
                   FloatBufferPool& pool);

}  // namespace cohort
