#pragma once

#include <torch/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

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

// One call of a layer, and the operations that follow the normalisation in the
// same pass over memory.
struct BatchNormUse {
  at::Tensor x;
  BatchNormOperands layer;
  bool relu = false;
  // Added before the ReLU; needs `relu`. May be undefined.
  at::Tensor addend;
  // Adds the output of the next use before the ReLU. Needs `relu`.
  bool adds_next = false;
};

// Implements the functions below. Returns one output a use, except for outputs
// that are added to another use's.
std::vector<at::Tensor> CallBatchNorm(absl::Span<const BatchNormUse> uses);

template <typename Norm>
BatchNormOperands OperandsOf(const Norm& norm) {
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

// norm(x), for user-defined models; `norm` is a torch::nn::BatchNorm1d, 2d or
// 3d. Unlike the module's forward it accepts a batch with one element a
// channel: one image a worker on a 1x1 map is still a part of the cohort's
// batch. If the whole cohort has only one element, the output is the layer's
// shift, and the statistics do not change.
template <typename Norm>
at::Tensor BatchNorm(Norm& norm, const at::Tensor& x) {
  return CallBatchNorm({{.x = x, .layer = OperandsOf(norm)}}).front();
}

// relu(norm(x)), as above. If a BatchNormScope binds the layer, it takes one
// pass over memory instead of two, forward and backward, and the backward pass
// keeps one tensor fewer.
template <typename Norm>
at::Tensor BatchNormRelu(Norm& norm, const at::Tensor& x) {
  return CallBatchNorm({{.x = x, .layer = OperandsOf(norm), .relu = true}})
      .front();
}

// relu(norm(x) + z), as above; z has the shape and type of x.
template <typename Norm>
at::Tensor BatchNormAddRelu(Norm& norm, const at::Tensor& x,
                            const at::Tensor& z) {
  return CallBatchNorm(
             {{.x = x, .layer = OperandsOf(norm), .relu = true, .addend = z}})
      .front();
}

// relu(norm(x) + other(z)), as above: the end of a residual block whose
// shortcut has a batch norm. Both layers share one rendezvous with
// the other workers in each pass; the results are bit-identical to two calls.
template <typename Norm>
at::Tensor BatchNormPairAddRelu(Norm& norm, const at::Tensor& x, Norm& other,
                                const at::Tensor& z) {
  return CallBatchNorm({{.x = x,
                         .layer = OperandsOf(norm),
                         .relu = true,
                         .adds_next = true},
                        {.x = z, .layer = OperandsOf(other)}})
      .front();
}

// relu(norm(x)) of each pair, as above. Up to four share a rendezvous. No input
// may depend on another's output.
template <typename Norm>
std::vector<at::Tensor> BatchNormReluEach(
    absl::Span<const std::pair<Norm, at::Tensor>> siblings) {
  std::vector<BatchNormUse> uses;
  for (const auto& [norm, x] : siblings) {
    uses.push_back({.x = x, .layer = OperandsOf(norm), .relu = true});
  }
  return CallBatchNorm(uses);
}

}  // namespace cohort
