#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/batch_norm_args.h"
#include "kernels/optimizer_step.h"

namespace cohort::kernels {

// The arithmetic that Cohort exists for, over raw memory.
//
// Determinism: same backend, same instruction set, same inputs: same bits, on
//   any number of threads.
// Thread safety: safe; no state that changes.
// Errors: none. Shapes and pointers are the caller's to check.
class Backend {
 public:
  virtual ~Backend() = default;

  // Name and instruction set, such as "cpu/AVX2".
  virtual absl::string_view name() const = 0;

  // Per channel: mean = sum x / n and M2 = sum (x-mean)^2, n = count().
  //
  // Accuracy: sums of (x - first sample) in float64, never raw sums in
  //   float32, so that a mean of 1e4 with deviation 1 keeps its variance.
  // Source: Chan, Golub, LeVeque, "Algorithms for computing the sample
  //   variance", 1983 (shifted data).
  virtual void Moments(const MomentsArgs& args) const = 0;

  // y = relu((x - mean) * invstd * gamma + beta + add), in float64 and rounded
  // at the end (to types of two bytes by way of float32). Without relu or add
  // that part is left out.
  //
  // NaN passes the ReLU, as in PyTorch; a y of 0 has either sign without it
  //   and is +0 with it.
  virtual void Normalize(const NormalizeArgs& args) const = 0;

  // The two sums of the backward pass over the local batch, of what the
  // ReLU's mask leaves of dy. The mask is that of y as it was stored: an
  // activation that was rounded to 0 passes nothing, NaN passes.
  virtual void BackwardReduce(const BackwardReduceArgs& args) const = 0;

  // dx = gamma * invstd * (dz - S1/N - (x-mean) * invstd^2 * S2/N), with
  // S1 = sum_dy, S2 = sum_dy_xmu, N = total_count.
  // Source: Ioffe and Szegedy, "Batch Normalization", 2015, section 3.
  virtual void BackwardElementwise(
      const BackwardElementwiseArgs& args) const = 0;

  // out = scale * (sum over contributors, in order).
  //
  // Order: the sum is accumulated in float64, contributor 0 first, and
  //   rounded to float32 once, before it is multiplied.
  // Returns false if any element of `out` is not finite; the others are
  //   there nevertheless.
  virtual bool FoldGradient(const GradientRun& run) const = 0;

  // Sum of x*x in float64. Element i goes to partial sum i mod 8; the partial
  // sums are added in pairs: the order is the same on every machine.
  virtual double SumOfSquares(absl::Span<const float> x) const = 0;

  // New weights and slots by the rule of `step`, whose formula is in
  // kernels/cpu/optimizers, from the mean that FoldGradient() makes of
  // `gradient`; its `out` is not used.
  //
  // Float32 throughout, each operation rounded once. Outputs may equal the
  //   inputs of the same name.
  // Returns false if any element of the mean is not finite.
  virtual bool Update(const RuleStep& step, const GradientRun& gradient,
                      const UpdateRun& run) const = 0;

  // g' = g + lambda * g * g * (w_now - w_read), in place; with a mean square,
  //   s' = m * s + (1-m) * g * g and lambda / sqrt(s' + epsilon) for lambda.
  //
  // Float32 throughout, each operation rounded once. square_out may be
  //   square_in.
  // Returns false if any element of g' is not finite.
  // Source: Zheng et al., "Asynchronous Stochastic Gradient Descent with
  //   Delay Compensation", 2017, DC-ASGD-c and DC-ASGD-a.
  virtual bool Compensate(const CompensationStep& step,
                          const CompensationRun& run) const = 0;

  // With w = weights_in, n = weights and c = remainder_in:
  //   u = c + (n - w);  d = bfloat16(u);  w' = w + d;  c' = u - (w' - w)
  // w' replaces n. A holder of w and d has the same bits of w'.
  //
  // Float32 throughout, each operation rounded once. remainder_out may be
  //   remainder_in. Source: Kahan, "Further remarks on reducing truncation
  //   errors", 1965: the sum w and what it lacks, c.
  virtual void RoundChange(const ChangeRun& run) const = 0;
};

// SIMD by Highway, dispatched at run time to the best instruction set here.
// Uses the calling thread only.
const Backend& CpuBackend();

// Calls `run` with ranges [begin, end) that make up [0, tasks), on any threads
// and in any order, and returns when all have ended.
using ParallelFor = std::function<void(
    int64_t tasks, absl::FunctionRef<void(int64_t begin, int64_t end)> run)>;

// CpuBackend() with its batch-norm kernels spread over the threads of
// `parallel_for`. How a tensor is cut into tasks depends on its shape only, so
// the bits are those of CpuBackend().
std::unique_ptr<Backend> NewCpuBackend(ParallelFor parallel_for);

}  // namespace cohort::kernels
