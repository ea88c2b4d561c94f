#pragma once

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/batch_norm_args.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/plan.h"
#include "kernels/data_type.h"

// Checks of a caller's arguments before a launch.
namespace cohort::kernels::cuda {

// 2 or 4; float64 is refused.
absl::StatusOr<int32_t> ElementBytes(DataType type);

struct NamedTensor {
  absl::string_view name;
  const void* memory = nullptr;
  bool required = true;
  // Bytes of an element of arrays with one element for each channel.
  int64_t element_bytes = sizeof(double);
};

// Bytes of an element of gamma or beta, which may have any type.
int64_t ParameterBytes(DataType type);

// A batch-norm call that may be launched: its plan, and whether there is any
// element.
struct CheckedCall {
  bool empty = false;
  Plan plan;
};

// Checks the shape, the type and every pointer of a call. `tensors` have the
// shape, `per_channel` have its channels; an empty batch needs none of the
// former.
absl::StatusOr<CheckedCall> CheckCall(
    const BatchShape& shape, DataType type,
    std::initializer_list<NamedTensor> tensors,
    std::initializer_list<NamedTensor> per_channel, const Queue& queue);

// The queue's workspace suffices for a plan.
absl::Status CheckWorkspace(const Plan& plan, const Queue& queue);

// `memory` is at a multiple of `bytes`.
absl::Status CheckAligned(absl::string_view name, const void* memory,
                          int64_t bytes);

}  // namespace cohort::kernels::cuda
