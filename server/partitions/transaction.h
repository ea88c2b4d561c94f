#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/model_layout.h"
#include "server/core/model/commands.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/model/shard_place.h"
#include "server/core/optimizer/group_options.h"
#include "server/core/optimizer/mask.h"
#include "server/core/settings/options.h"
#include "server/partitions/fold_job.h"

namespace cohort {

// The versions that a plan names, and the settings in force.
struct PlanContext {
  SharedModel model;
  SharedSnapshot base;
  // Null: the plan names none.
  SharedSnapshot read;
  OptimizerOptions optimizer;
  // Elements that stay as they are. Null: none.
  SharedMask mask;
};

// A gradient that was accepted.
struct HeldGradient {
  PushId push;
  int32_t partition = 0;
  // The partition's elements.
  ByteRope gradient;
  ElementType type = ElementType::kFloat32;
  // Positions in Partition::slices that the rank has no gradient for.
  std::vector<int32_t> absent_slices;
};

// One atomic change of all partitions: makes the folds of a plan and collects
// their results.
//
// Where the rule needs norms (NeedsNorms), each partition is folded in two
// passes, or three (MeasuresUpdates). Each but the first begins with Scale,
// once the core has the squares of every slice of every shard.
class Transaction {
 public:
  // Folds the partitions that `place` owns.
  Transaction(CommitPlan plan, PlanContext context,
              const ShardPlace& place = {});

  int64_t id() const { return plan_.transaction; }
  const CommitPlan& plan() const { return plan_; }

  bool Started(int32_t partition) const {
    return started_[static_cast<size_t>(partition)];
  }
  // The fold of `partition`, which must not have started, over the gradients
  // of all contributors, in rank order.
  FoldJob Fold(int32_t partition, std::vector<HeldGradient> gradients);
  // A fold of this transaction has ended; each of its folds comes once.
  void Done(FoldResult result);
  // A pass has ended here, with finite values, and the next has not begun.
  bool AwaitsScales() const;
  // Begins the next pass, which it must await.
  std::vector<FoldJob> Scale(const GradientScales& scales);

  // All folds have ended, and gradients were finite.
  bool prepared() const { return missing_ == 0 && finite_; }
  // The plan's base with all that was prepared, as the next version.
  SharedSnapshot Next() const {
    return WithResults(context_.base->version.Next());
  }
  // The same for the update that follows, as the base of its plan.
  SharedSnapshot Draft() const { return WithResults(context_.base->version); }
  // Absent: not folded to the end yet, frozen, or another shard's.
  const std::optional<FoldResult>& result(int32_t partition) const {
    return results_[static_cast<size_t>(partition)];
  }

 private:
  bool several_passes() const;
  SharedSnapshot WithResults(Version version) const;
  // Share of the new weights in their average; 0 if they do not change.
  float AverageGain() const;
  // Sets the step of the optimizer's rule for one slice of `job`.
  void SetStep(size_t slice, const GradientScales& scales, FoldJob& job) const;

  const RegisteredModel& model() const { return *context_.model; }
  const OptimizerOptions& optimizer() const { return groups_.options(); }

  CommitPlan plan_;
  PlanContext context_;
  GroupOptions groups_;
  ShardPlace place_;
  double gradient_scale_ = 0;
  // By partition, until the last pass begins: the job of `next_pass_` but for
  // what depends on norms. `missing_norms_` counts the shard's own partitions
  // whose pass before it has not ended.
  std::vector<FoldJob> pending_;
  FoldPass next_pass_ = FoldPass::kUpdate;
  int32_t missing_norms_ = 0;
  // By partition; partitions that are frozen or another shard's count as
  // started and are never folded.
  std::vector<bool> started_;
  std::vector<std::optional<FoldResult>> results_;
  int32_t missing_ = 0;
  bool finite_ = true;
};

}  // namespace cohort
