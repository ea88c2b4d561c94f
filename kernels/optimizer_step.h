#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/optimizers.h"

namespace cohort::kernels {

// The mean gradient of one run of `count` float32 elements.
struct GradientRun {
  // One pointer a contributor, in rank order; no alignment is assumed.
  absl::Span<const std::byte* const> gradients;
  // Multiplies the sum: n_ref / sum of loss weights.
  float scale = 1;
  int64_t count = 0;
  float* out = nullptr;
};

// Buffers of a rule, and scalars of one of its steps, at most.
inline constexpr size_t kRuleSlotsMax = 4;
inline constexpr size_t kRuleScalarsMax = 12;

// One update by a rule.
struct RuleStep {
  OptimizerKind rule = OptimizerKind::kAuto;
  // The rule's own struct of float32. Factors that depend on the number of
  // updates are computed in float64 and rounded once: 1 - 0.999f is off by
  // 5e-5.
  std::array<float, kRuleScalarsMax> scalars = {};
};

struct UpdateRun {
  const float* weights_in = nullptr;
  float* weights_out = nullptr;
  // In the order of OptimizerRule::slots. Null: it is not kept.
  std::array<const float*, kRuleSlotsMax> slots_in = {};
  std::array<float*, kRuleSlotsMax> slots_out = {};
  // Results are not expected to be in a cache when they are read next, so they
  // may be written past the caches. No bit depends on it.
  bool streaming = false;
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
