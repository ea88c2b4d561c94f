#pragma once

#include <torch/types.h>

#include <optional>

namespace cohort {

// A batch-norm module, taken apart.
struct BatchNormOperands {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;
  double epsilon = 0;
  // Absent: cumulative average.
  std::optional<double> momentum;
  bool training = false;
};

// What follows the normalisation, in the same pass over memory.
struct BatchNormTail {
  // Added before the ReLU; undefined: nothing. Needs `relu`.
  at::Tensor addend;
  bool relu = false;
};

// What the functions below do.
at::Tensor CallBatchNorm(const at::Tensor& x, const BatchNormOperands& layer,
                         const BatchNormTail& tail);

template <typename Norm>
BatchNormOperands OperandsOf(Norm& norm) {
  BatchNormOperands operands{.weight = norm->weight,
                             .bias = norm->bias,
                             .running_mean = norm->running_mean,
                             .running_var = norm->running_var,
                             .num_batches_tracked = norm->num_batches_tracked,
                             .epsilon = norm->options.eps(),
                             .training = norm->is_training()};
  // LibTorch's optional is std::optional in new releases only.
  if (norm->options.momentum().has_value()) {
    operands.momentum = *norm->options.momentum();
  }
  return operands;
}

// norm(x), for a model of one's own; `norm` is a torch::nn::BatchNorm1d, 2d or
// 3d. Unlike the module's forward it takes a batch with one element a channel:
// an image a worker and a map of 1x1 are no less a part of the cohort's batch.
// Where that is all there is, it comes out as the layer's shift, and moves no
// statistics.
template <typename Norm>
at::Tensor BatchNorm(Norm& norm, const at::Tensor& x) {
  return CallBatchNorm(x, OperandsOf(norm), {});
}

// relu(norm(x)), as above. Where a BatchNormScope binds the layer it is one
// pass over memory instead of two, forward and backward, and the backward pass
// keeps one tensor less.
template <typename Norm>
at::Tensor BatchNormRelu(Norm& norm, const at::Tensor& x) {
  return CallBatchNorm(x, OperandsOf(norm), {.relu = true});
}

// relu(norm(x) + z), as above; z is of the shape and type of x.
template <typename Norm>
at::Tensor BatchNormAddRelu(Norm& norm, const at::Tensor& x,
                            const at::Tensor& z) {
  return CallBatchNorm(x, OperandsOf(norm), {.addend = z, .relu = true});
}

}  // namespace cohort
