#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/train/model_weights.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace cohort {

// The optimizer of local steps, one of LibTorch's.
struct LocalOptimizerOptions {
  enum class Kind { kSgd, kNesterov, kAdamW };
  Kind kind = Kind::kSgd;
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 5e-4;

  friend bool operator==(const LocalOptimizerOptions&,
                         const LocalOptimizerOptions&) = default;
};

// In words, for RunPlan::local_optimizer; empty for the default.
std::string LocalOptimizerText(const LocalOptimizerOptions& options);

// The local steps of one assignment: updates of the worker's own copy of the
// weights. Their sum is what the worker pushes, and a function of the weights
// at the beginning and of the batches alone, because the optimizer starts
// without state. So a repeated assignment gives the same bits.
//
// Thread safety: none.
class LocalSteps {
 public:
  // Keeps a copy of the trainable weights, which must outlive it. `rate_factor`
  // multiplies the learning rate, which the multipliers of the layout apply to,
  // as those of decay to the decay.
  LocalSteps(ModelWeights& weights, const LocalOptimizerOptions& options,
             double rate_factor);
  ~LocalSteps();
  LocalSteps(const LocalSteps&) = delete;
  LocalSteps& operator=(const LocalSteps&) = delete;

  // Updates the weights by their gradients, which it releases.
  void Step();
  // Puts the weights back, and makes (weights before - after) * scale their
  // gradients. Parameters that never had a gradient have none.
  void Finish(double scale);

 private:
  struct Copy {
    at::Tensor parameter;
    at::Tensor before;
    bool had_gradient = false;
  };

  ModelWeights& weights_;
  std::vector<Copy> copies_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace cohort
