#include "worker/batch_norm/functional.h"

#include <torch/torch.h>

#include <memory>
#include <optional>

#include "worker/batch_norm/batch_norm_function.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

bool UsesBatchStatistics(const BatchNormOperands& layer) {
  return layer.training || !layer.running_mean.defined();
}

// As the module's forward, without its check.
at::Tensor StockBatchNorm(const at::Tensor& x, const BatchNormOperands& layer) {
  const bool by_batch = UsesBatchStatistics(layer);
  // One element has no unbiased variance: the operator would store NaN.
  const bool alone = by_batch && x.numel() == x.size(1);
  double factor = layer.momentum.value_or(0);
  if (layer.training && !alone && layer.num_batches_tracked.defined()) {
    at::Tensor tracked = layer.num_batches_tracked;
    tracked.add_(1);
    if (!layer.momentum.has_value()) factor = 1 / tracked.item<double>();
  }
  return torch::batch_norm(
      x, layer.weight, layer.bias, alone ? at::Tensor() : layer.running_mean,
      alone ? at::Tensor() : layer.running_var, by_batch, factor, layer.epsilon,
      at::globalContext().userEnabledCuDNN());
}

}  // namespace

at::Tensor CallBatchNorm(const at::Tensor& x, const BatchNormOperands& layer,
                         const BatchNormTail& tail) {
  const std::shared_ptr<BatchNormScope::Step>& step = BatchNormScope::Current();
  if (step != nullptr) {
    const std::optional<int32_t> index =
        step->binding->LayerOf(layer.weight, layer.running_mean);
    if (index.has_value()) {
      return CohortBatchNorm({.input = x,
                              .weight = layer.weight,
                              .bias = layer.bias,
                              .running_mean = layer.running_mean,
                              .running_var = layer.running_var,
                              .addend = tail.addend},
                             {.step = step,
                              .layer = *index,
                              .epsilon = layer.epsilon,
                              .batch_statistics = UsesBatchStatistics(layer),
                              .relu = tail.relu});
    }
  }
  at::Tensor y = StockBatchNorm(x, layer);
  if (tail.addend.defined()) y.add_(tail.addend);
  return tail.relu ? y.relu_() : y;
}

}  // namespace cohort
