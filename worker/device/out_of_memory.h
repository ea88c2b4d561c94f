#pragma once

#include <torch/types.h>

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/device/compute_device.h"

namespace cohort {

// Whether LibTorch threw `e` because memory of the host or of a device ran out.
bool IsOutOfMemory(const std::exception& e);

// Such as "conv1.weight, Float [64,3,7,7], 37632 bytes".
std::string TensorText(absl::string_view name, const at::Tensor& tensor);

// Such as "Float [64,3,7,7], 37632 bytes".
std::string TypeAndShapeText(at::ScalarType type, at::IntArrayRef shape);

// A ResourceExhausted error that says what did not fit where, what was free,
// what LibTorch reported, and what to do.
absl::Status OutOfMemory(const Compute& compute, absl::string_view what,
                         const std::exception& e);
absl::Status OutOfMemory(const Compute& compute, absl::string_view what,
                         absl::string_view why);

}  // namespace cohort
