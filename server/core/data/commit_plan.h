#pragma once

#include <cstdint>
#include <vector>

#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/optimizer/mask.h"
#include "server/core/options.h"

// The messages between the coordinator and a data shard.
namespace cohort {

// Names the gradients of one push.
struct PushId {
  Rank rank;
  PushKey key;

  friend auto operator<=>(const PushId&, const PushId&) = default;
};

// A gradient that was accepted.
struct HeldGradient {
  PushId push;
  int32_t partition = 0;
  // The partition's elements. Empty if another shard has them.
  ByteRope gradient;
  ElementType type = ElementType::kFloat32;
  // Positions in Partition::slices that the rank has no gradient for.
  std::vector<int32_t> absent_slices;
  // As in GradientMessage.
  int64_t ticket = 0;
};

// One commit: whose gradients go into it, and how.
struct CommitPlan {
  // Distinguishes this one from those that were given up. Rises.
  int64_t transaction = 0;
  // In rank order.
  std::vector<PushId> contributors;
  SharedModel model;
  // The version that is changed.
  SharedSnapshot base;
  OptimizerOptions optimizer;
  double learning_rate = 0;
  // With RunPlan::rates_by_workers, in place of it: by rate group.
  std::vector<double> group_rates;
  // Sum of the contributors' PushOpening::GradientWeight. 0: there was nothing
  // to learn from, and weights and slots stay as they are, as where no
  // contributor has a gradient.
  double loss_weight = 0;
  // Elements that stay as they are. Null: none.
  SharedMask mask;
  // Delay compensation with the weights that were read; null: none.
  SharedSnapshot read;
  double compensation = 0;
  bool adaptive = false;
  // In (0, 1]: damps the mean gradient, after compensation and clipping. The
  // gradient and not the rate: under momentum a gradient acts through the
  // velocity for many commits, each with a rate of its own, and what it does
  // in all is damped by exactly this.
  double weight = 1;
};

}  // namespace cohort
