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
  // Results are not expected to be in a cache when they are read next, so they
  // may be written past the caches. No bit depends on it.
  bool streaming = false;
};

// The mean gradient of one run of elements, by itself.
struct GradientRun {
  // As in SgdRun.
  absl::Span<const std::byte* const> gradients;
  // Multiplies the sum.
  float scale = 1;
  int64_t count = 0;
  float* out = nullptr;
};

// One update of Adam. Factors that depend on the number of updates are the
// caller's, in float64 rounded once: 1 - 0.999f is off by 5e-5.
struct AdamStep {
  // The gradient is multiplied by this first.
  float gradient_scale = 1;
  // rate / (1 - beta1^t).
  float rate = 0;
  // Added to the gradient (Adam): decay * w.
  float weight_decay = 0;
  // Multiplies the weight first (AdamW): 1 - rate * decay.
  float weight_keep = 1;
  // beta1 and 1 - beta1.
  float first_decay = 0;
  float first_gain = 1;
  // beta2 and 1 - beta2.
  float second_decay = 0;
  float second_gain = 1;
  // sqrt(1 - beta2^t).
  float second_correction = 1;
  float epsilon = 1e-8f;
};

struct AdamRun {
  const float* gradient = nullptr;
  int64_t count = 0;
  const float* weights_in = nullptr;
  float* weights_out = nullptr;
  const float* first_in = nullptr;
  float* first_out = nullptr;
  const float* second_in = nullptr;
  float* second_out = nullptr;
};

// Delay compensation of a gradient that was computed at older weights.
struct CompensationStep {
  float lambda = 0;
  // Factors of the moving mean square, if there is one: m and 1 - m.
  float square_decay = 0;
  float square_gain = 1;
  float epsilon = 0;
};

struct CompensationRun {
  // In and out.
  float* gradient = nullptr;
  int64_t count = 0;
  // As they are, and as they were read.
  const float* weights_now = nullptr;
  const float* weights_read = nullptr;
  // Null: lambda as it is.
  const float* square_in = nullptr;
  float* square_out = nullptr;
};

// The change from weights to those of the next version, rounded to bfloat16.
struct ChangeRun {
  int64_t count = 0;
  const float* weights_in = nullptr;
  // In: what the optimizer made of weights_in. Out: the next weights.
  float* weights = nullptr;
  // Rounding error of the earlier changes, and with this one.
  const float* remainder_in = nullptr;
  float* remainder_out = nullptr;
  // `count` bfloat16, of any alignment.
  std::byte* change = nullptr;
};

}  // namespace cohort::kernels
