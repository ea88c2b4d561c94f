#include "kernels/cuda/checks.h"

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "kernels/batch_norm_args.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/plan.h"
#include "kernels/data_type.h"

namespace cohort::kernels::cuda {
namespace {

// Two terabytes of two-byte elements; all arithmetic on indices stays far
// below 2^63.
constexpr int64_t kElementsMax = int64_t{1} << 40;
constexpr int64_t kBlocksMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kWorkspaceAlignment = 16;

absl::Status CheckShape(const BatchShape& shape) {
  if (shape.outer < 0 || shape.channels < 1 || shape.inner < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape [", shape.outer, "][", shape.channels, "][", shape.inner,
        "]: want at least one channel and no "
        "negative size"));
  }
  // By division, since the product may be beyond int64.
  int64_t left = kElementsMax / shape.channels;
  for (int64_t size : {shape.outer, shape.inner}) {
    if (size > 0) left /= size;
  }
  if (left == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape [", shape.outer, "][", shape.channels, "][",
                     shape.inner, "]: more than 2^40 elements"));
  }
  return absl::OkStatus();
}

absl::Status CheckPointer(const NamedTensor& tensor, int64_t bytes) {
  if (tensor.memory == nullptr) {
    if (!tensor.required) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.name, ": null, want memory of the device"));
  }
  return CheckAligned(tensor.name, tensor.memory, bytes);
}

}  // namespace

absl::Status CheckAligned(absl::string_view name, const void* memory,
                          int64_t bytes) {
  const auto behind =
      reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(bytes);
  if (behind == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": lies ", behind,
                                                 " bytes behind a multiple of ",
                                                 bytes, ", want it at one"));
}

int64_t ParameterBytes(DataType type) {
  return VisitType(type, []<typename T>(std::type_identity<T>) -> int64_t {
    return sizeof(T);
  });
}

absl::StatusOr<int32_t> ElementBytes(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kFloat64:
      break;
  }
  return absl::InvalidArgumentError(
      "type float64: the CUDA kernels take float32, float16 and bfloat16; run "
      "this layer on the CPU or cast it");
}

absl::StatusOr<CheckedCall> CheckCall(
    const BatchShape& shape, DataType type,
    std::initializer_list<NamedTensor> tensors,
    std::initializer_list<NamedTensor> per_channel, const Queue& queue) {
  COHORT_RETURN_IF_ERROR(CheckShape(shape));
  COHORT_ASSIGN_OR_RETURN(const int32_t element_bytes, ElementBytes(type));
  if (queue.multiprocessors < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue: got ", queue.multiprocessors,
                     " multiprocessors, want those that OpenDevice found"));
  }
  for (const NamedTensor& tensor : per_channel) {
    COHORT_RETURN_IF_ERROR(CheckPointer(tensor, tensor.element_bytes));
  }
  CheckedCall call = {.empty = shape.count() == 0};
  if (call.empty) return call;
  std::vector<const void*> addresses;
  for (const NamedTensor& tensor : tensors) {
    COHORT_RETURN_IF_ERROR(CheckPointer(tensor, element_bytes));
    addresses.push_back(tensor.memory);
  }
  const Access access = WidestAccess(
      addresses.data(), static_cast<int32_t>(addresses.size()), element_bytes);
  call.plan = MakePlan(shape, access, queue.multiprocessors);
  if (call.plan.blocks() > kBlocksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape [", shape.outer, "][", shape.channels, "][",
                     shape.inner, "]: needs ", call.plan.blocks(),
                     " blocks, a launch has at most ", kBlocksMax));
  }
  return call;
}

absl::Status CheckWorkspace(const Plan& plan, const Queue& queue) {
  if (queue.workspace == nullptr) {
    return absl::InvalidArgumentError(
        "workspace: null, want zeroed memory of the device of "
        "BatchNormWorkspaceBytes()");
  }
  COHORT_RETURN_IF_ERROR(
      CheckAligned("workspace", queue.workspace, kWorkspaceAlignment));
  const int64_t wanted =
      kCounterBytes + PairsOf(plan) * static_cast<int64_t>(2 * sizeof(double));
  if (queue.workspace_bytes >= wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("workspace: got ", queue.workspace_bytes, " bytes, want ",
                   wanted, " (BatchNormWorkspaceBytes())"));
}

}  // namespace cohort::kernels::cuda
