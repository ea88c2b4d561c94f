#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace cohort::kernels {

// Hyper-parameters of one fused fold-and-update over a run of elements.
struct SgdStep {
  // Every contribution is multiplied by this after the sum:
  // n_ref / sum of loss weights.
  float gradient_scale = 1;
  float learning_rate = 0;
  // 0 for parameters that are exempt.
  float weight_decay = 0;
  // 0: no momentum, and velocities are not touched.
  float momentum = 0;
  bool nesterov = false;
};

// Memory of one run of `count` float32 elements.
struct SgdRun {
  // One pointer a contributor, in rank order; no alignment is assumed.
  absl::Span<const std::byte* const> gradients;
  int64_t count = 0;
  const float* weights_in = nullptr;
  float* weights_out = nullptr;
  // Null where momentum is 0.
  const float* velocity_in = nullptr;
  float* velocity_out = nullptr;
};

}  // namespace cohort::kernels
