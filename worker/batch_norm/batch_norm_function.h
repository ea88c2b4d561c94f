#pragma once

#include <ATen/ops/batch_norm_native.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
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
  // If false, the moving statistics are used. A layer that the binding holds
  // frozen uses them in any case.
  bool batch_statistics = true;
  bool relu = false;
  // The output of the next call in the list is added before the ReLU; needs
  // `relu`.
  bool adds_next = false;
  // Assigned by CohortBatchNorm: the part of the step, and the number of the
  // call within it.
  int32_t part = 0;
  int32_t call = 0;
};

// Operands of a call; absent and undefined mean the same. The moving statistics
// are read only if the call is normalised by them.
struct BatchNormTensors {
  at::Tensor input;
  OptionalTensor weight;
  OptionalTensor bias;
  OptionalTensor running_mean;
  OptionalTensor running_var;
  // Added before the ReLU, of the input's shape and type; needs `relu`.
  OptionalTensor addend;
};

struct BoundCall {
  BatchNormTensors tensors;
  BatchNormCall call;
};

// The number of calls that can be answered together.
inline constexpr size_t kSiblingsMax = 4;

// Batch norm with the moments of the whole step, or with moving statistics; see
// BatchNormScope for shapes, types and what it throws. The calls, at most
// kSiblingsMax of one step, meet the other members together, once in each pass;
// no input may depend on another's output. Returns one output a call, except
// for outputs that are added to another call's.
//
// Results are bit-identical to calls made one by one.
// Gradients: dx from the sums over all members; those of weight and bias from
//   the local sums only, because the push adds them over the members. With
//   moving statistics all are local.
// Source: Ioffe and Szegedy, "Batch Normalization", 2015, section 3; moments
//   are combined as (N, mean, M2), never as mean variances.
std::vector<at::Tensor> CohortBatchNorm(absl::Span<const BoundCall> calls);

}  // namespace cohort
