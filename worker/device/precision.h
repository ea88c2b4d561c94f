#pragma once

#include <torch/types.h>

#include "absl/strings/string_view.h"

namespace cohort {

// The number type that layers compute in. Weights, gradients, statistics and
// losses are float32 or wider in either case.
enum class Precision {
  kFloat32,
  // Convolutions and linear layers compute in bfloat16, by LibTorch's autocast.
  kBFloat16,
};

// `name` is float32 or bfloat16.
inline Precision PrecisionNamed(absl::string_view name) {
  return name == "bfloat16" ? Precision::kBFloat16 : Precision::kFloat32;
}

// While it lives, the calling thread's layers on devices of this type compute
// in `precision`. LibTorch's cached casts of weights are dropped at the end,
// because the weights are overwritten between steps.
class PrecisionScope {
 public:
  PrecisionScope(at::DeviceType type, Precision precision);
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;
  ~PrecisionScope();

 private:
  const at::DeviceType type_;
  const Precision precision_;
};

}  // namespace cohort
