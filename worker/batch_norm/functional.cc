#include "worker/batch_norm/functional.h"

#include <torch/torch.h>

#include <optional>

#include "worker/batch_norm/batch_norm_function.h"
#include "worker/batch_norm/scope.h"

namespace cohort {

at::Tensor TryCohortBatchNorm(const at::Tensor& input,
                              const BatchNormOperands& layer,
                              const BatchNormTail& tail) {
  const std::shared_ptr<BatchNormScope::Step>& step = BatchNormScope::Current();
  if (step == nullptr) return at::Tensor();
  const std::optional<int32_t> index =
      step->binding->LayerOf(layer.weight, layer.running_mean);
  if (!index.has_value()) return at::Tensor();
  return CohortBatchNorm({.input = input,
                          .weight = layer.weight,
                          .bias = layer.bias,
                          .running_mean = layer.running_mean,
                          .running_var = layer.running_var,
                          .addend = tail.addend},
                         {.step = step,
                          .layer = *index,
                          .epsilon = layer.epsilon,
                          .batch_statistics = layer.batch_statistics,
                          .relu = tail.relu});
}

}  // namespace cohort
