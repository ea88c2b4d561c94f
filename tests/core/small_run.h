#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model_layout.h"
#include "common/push.h"
#include "kernels/backend.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/step/pending_commit.h"
#include "server/partitions/fold_stage.h"

namespace cohort {

// By parameter of the layout, in full.
using ParameterValues = std::vector<std::vector<float>>;

// Parameters around the sizes that the folds cut at: of a few elements, of more
// than a block, of more than a partition, exempt from decay, with factors of
// rate and decay, and frozen.
ModelLayout SmallRunLayout();

// Uniform in [-scale, scale), one entry a parameter.
ParameterValues RandomValues(const ModelLayout& layout, uint64_t seed,
                             double scale);

// A model that transactions change; their folds run at once.
class SmallRun {
 public:
  static constexpr double kLossReference = 4;

  // Options of one step besides the gradients.
  struct Step {
    double learning_rate = 0.1;
    double loss_weight = 8;
    // The weights that the gradients were computed at. If null, no
    // compensation.
    SharedSnapshot read;
    double compensation = 0;
    bool adaptive = false;
    double weight = 1;
    // Parameters for which no rank has a gradient.
    std::vector<int32_t> absent;
    std::vector<GroupNumber> numbers = {};
  };

  SmallRun(const OptimizerOptions& optimizer, const kernels::Backend& backend,
           const PolicyOptions& policy = {});

  // One commit; `gradients` has one entry a rank. Fails the running test unless
  // every fold ends. Returns the non-finite gradient, if any; then nothing has
  // changed.
  std::optional<NonfiniteGradient> Apply(
      const std::vector<ParameterValues>& gradients, const Step& step);

  // Continues with other options; slots that fit are kept.
  void Change(const OptimizerOptions& optimizer);

  const ModelLayout& layout() const { return model_->layout; }
  const SharedModel& model() const { return model_; }
  const SharedSnapshot& snapshot() const { return snapshot_; }
  ParameterValues weights() const;
  // The values of one slot; empty for parameters without it.
  ParameterValues slot(SharedFloats Slots::*buffer) const;
  // The gradient norm of the last commit.
  std::optional<double> gradient_norm() const { return gradient_norm_; }

 private:
  // Passes all gradients of one rank to `data`.
  void HoldAll(FoldStage& data, const PushId& push,
               const ParameterValues& gradients,
               const std::vector<int32_t>& absent) const;
  ParameterValues Values(const std::vector<SharedFloats>& buffers) const;

  OptimizerOptions optimizer_;
  const kernels::Backend& backend_;
  PolicyOptions policy_;
  FloatBufferPool pool_;
  SharedModel model_;
  SharedMask mask_;
  SharedSnapshot snapshot_;
  std::optional<double> gradient_norm_;
};

}  // namespace cohort
