#pragma once

#include <torch/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace cohort {

// What layers compute in. Weights, gradients, statistics and losses are float32
// or wider in either case.
enum class Precision {
  kFloat32,
  // Convolutions and linear layers in bfloat16, as LibTorch's autocast has it.
  kBFloat16,
};

// Errors: InvalidArgument for anything but float32 and bfloat16.
absl::StatusOr<Precision> ParsePrecision(const std::string& text);

// While it lives, the calling thread's layers on devices of this type compute
// in `precision`. Copies of weights that LibTorch keeps for that are forgotten
// at its end, as the weights are overwritten between steps.
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
