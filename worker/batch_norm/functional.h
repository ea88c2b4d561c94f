#pragma once

#include <torch/types.h>

namespace cohort {

// The tensors and options of a batch-norm module.
struct BatchNormOperands {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  double epsilon = 0;
  // As the module hands it to the operator.
  bool batch_statistics = true;
};

// What follows the normalisation, in the same pass over memory.
struct BatchNormTail {
  // Added before the ReLU; undefined: nothing. Needs `relu`.
  at::Tensor addend;
  bool relu = false;
};

// The call as Cohort answers it; undefined if no BatchNormScope of this thread
// binds the layer.
at::Tensor TryCohortBatchNorm(const at::Tensor& input,
                              const BatchNormOperands& layer,
                              const BatchNormTail& tail);

// `norm` is a torch::nn::BatchNorm1d, 2d or 3d. Of any other module of that
// interface, too, such as a pointer to a class derived from one.
template <typename Norm>
BatchNormOperands OperandsOf(Norm& norm) {
  return {.weight = norm->weight,
          .bias = norm->bias,
          .running_mean = norm->running_mean,
          .running_var = norm->running_var,
          .epsilon = norm->options.eps(),
          .batch_statistics =
              norm->is_training() || !norm->options.track_running_stats()};
}

// norm(x), for a model of one's own. Where a BatchNormScope binds the layer, a
// batch with one element a channel is welcome, which the module's forward
// refuses: an image a worker and a map of 1x1 are no less a part of the
// cohort's batch.
template <typename Norm>
at::Tensor BatchNorm(Norm& norm, const at::Tensor& x) {
  const at::Tensor y = TryCohortBatchNorm(x, OperandsOf(norm), {});
  return y.defined() ? y : norm->forward(x);
}

// relu(norm(x)), as above. Within a BatchNormScope one pass over memory
// instead of two, and one tensor less is kept for the backward pass.
template <typename Norm>
at::Tensor BatchNormRelu(Norm& norm, const at::Tensor& x) {
  const at::Tensor y = TryCohortBatchNorm(x, OperandsOf(norm), {.relu = true});
  return y.defined() ? y : norm->forward(x).relu_();
}

// relu(norm(x) + z), as above; z is of the shape and type of x.
template <typename Norm>
at::Tensor BatchNormAddRelu(Norm& norm, const at::Tensor& x,
                            const at::Tensor& z) {
  const at::Tensor y =
      TryCohortBatchNorm(x, OperandsOf(norm), {.addend = z, .relu = true});
  return y.defined() ? y : norm->forward(x).add_(z).relu_();
}

}  // namespace cohort
