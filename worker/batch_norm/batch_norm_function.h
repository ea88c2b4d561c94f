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
  double epsilon = 0;
  // False: by the moving statistics. A layer that the binding holds frozen is
  // normalised by them in any case.
  bool batch_statistics = true;
  bool relu = false;
  // Assigned by CohortBatchNorm.
  int32_t call = 0;
};

// What a call works on; absent and undefined mean the same. The moving
// statistics are read only where they normalise.
struct BatchNormTensors {
  at::Tensor input;
  OptionalTensor weight;
  OptionalTensor bias;
  OptionalTensor running_mean;
  OptionalTensor running_var;
  // Added before the ReLU, of the input's shape and type; needs `relu`.
  OptionalTensor addend;
};

// Batch norm with the moments of the whole step, or with moving statistics;
// see BatchNormScope for shapes, types and what it throws.
//
// Gradients: dx from the sums over all members; those of weight and bias from
//   the local sums only, because the push adds them over the members. With
//   moving statistics all are local.
// Source: Ioffe and Szegedy, "Batch Normalization", 2015, section 3; moments
//   are combined as (N, mean, M2), never as mean variances.
at::Tensor CohortBatchNorm(const BatchNormTensors& tensors, BatchNormCall call);

}  // namespace cohort
