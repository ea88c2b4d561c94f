#pragma once

#include <ATen/ops/batch_norm_native.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <type_traits>

#include "worker/batch_norm/scope.h"

namespace cohort {

template <typename R, typename First, typename Second, typename... Others>
Second SecondArgument(R (*)(First, Second, Others...));

// LibTorch's optional tensor: c10::optional up to 2.x, std::optional later.
using OptionalTensor =
    std::remove_cvref_t<decltype(SecondArgument(&at::native::batch_norm))>;

// One forward call of a bound layer.
struct BatchNormCall {
  std::shared_ptr<BatchNormScope::Step> step;
  int32_t layer = 0;
  // Assigned by CohortBatchNorm.
  int32_t call = 0;
  double epsilon = 0;
};

// Training-mode batch norm with the moments of the whole step; see
// BatchNormScope for shapes, types and what it throws.
//
// Gradients: dx from the sums over all members; those of weight and bias from
//   the local sums only, because the push adds them over the members.
// Source: Ioffe and Szegedy, "Batch Normalization", 2015, section 3; moments
//   are combined as (N, mean, M2), never as mean variances.
at::Tensor CohortBatchNorm(const at::Tensor& input,
                           const OptionalTensor& weight,
                           const OptionalTensor& bias, BatchNormCall call);

}  // namespace cohort
