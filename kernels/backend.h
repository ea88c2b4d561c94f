#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/data_type.h"
#include "kernels/optimizer_step.h"

namespace cohort::kernels {

// A batch-norm input seen as [outer][channels][inner], row-major. Contiguous
// [N, C, H, W] is {N, C, H*W}; channels_last and [N, C] are {N*H*W, C, 1}.
struct BatchShape {
  int64_t outer = 0;
  int64_t channels = 0;
  int64_t inner = 0;

  // Elements per channel.
  int64_t count() const { return outer * inner; }
};

// Raw pointers to tensors of `type`; everything per channel is float64
// [channels] unless said otherwise, whatever the tensors' type.
struct MomentsArgs {
  BatchShape shape;
  DataType type = DataType::kFloat32;
  const void* x = nullptr;
  // Out. With count() == 0 both are zeros.
  double* mean = nullptr;
  double* m2 = nullptr;
};

struct NormalizeArgs {
  BatchShape shape;
  DataType type = DataType::kFloat32;
  const void* x = nullptr;
  const double* mean = nullptr;
  const double* invstd = nullptr;
  // Null: scale 1, shift 0. Of `parameter_type`; layers of half precision
  // keep theirs in float32.
  DataType parameter_type = DataType::kFloat32;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  // Null: nothing is added. Else z, of the shape and type of x.
  const void* add = nullptr;
  bool relu = false;
  // Out; may be x or add.
  void* y = nullptr;
};

struct BackwardReduceArgs {
  BatchShape shape;
  DataType type = DataType::kFloat32;
  const void* x = nullptr;
  const void* dy = nullptr;
  const double* mean = nullptr;
  // Out: sum dz and sum dz*(x-mean) of the local batch.
  double* sum_dy = nullptr;
  double* sum_dy_xmu = nullptr;

  // With a fused ReLU dz = dy where y > 0 and else 0; without it dz = dy and
  // none of what follows is read.
  bool relu = false;
  // The output of the forward pass. Null: its sign is recomputed from x and
  // the next four, which must be those of Normalize, and nothing was added.
  const void* y = nullptr;
  const double* invstd = nullptr;
  DataType parameter_type = DataType::kFloat32;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  // Out; may be dy. Null: dz is not stored.
  void* dz = nullptr;
};

// After a fused add and ReLU pass the dz that BackwardReduce stored as dy, and
// no relu: it is the gradient of z as well.
struct BackwardElementwiseArgs {
  BatchShape shape;
  DataType type = DataType::kFloat32;
  const void* x = nullptr;
  const void* dy = nullptr;
  const double* mean = nullptr;
  const double* invstd = nullptr;
  // Null: 1. Of `parameter_type`.
  DataType parameter_type = DataType::kFloat32;
  const void* gamma = nullptr;
  // Sums over all members, and their total count. Both null: the statistics
  // are constants (frozen), dx = gamma * invstd * dz.
  const double* sum_dy = nullptr;
  const double* sum_dy_xmu = nullptr;
  int64_t total_count = 0;
  // True: dz of BackwardReduceArgs takes the place of dy, its mask recomputed
  // from x and beta (null: 0). Else beta is not read.
  bool relu = false;
  const void* beta = nullptr;
  // Out; may be dy or x.
  void* dx = nullptr;
};

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

  // One pass over gradients, weights and velocities:
  //   g = gradient_scale * (sum over contributors, in order) + decay * w
  //   v' = momentum * v + g;  w' = w - rate * (nesterov ? g + momentum*v' : v')
  // and w' = w - rate * g without momentum (as in PyTorch's SGD).
  //
  // Order: the sum is accumulated in float64, contributor 0 first, and
  //   rounded to float32 once; the rest is float32 without contraction.
  // Aliasing: outputs may equal the inputs of the same name.
  // Returns false if any element of the folded gradient is not finite;
  //   outputs are then unspecified.
  virtual bool FoldSgd(const SgdStep& step, const SgdRun& run) const = 0;

  // out = scale * (sum over contributors, in order): the first half of
  // FoldSgd and its bits, for updates that need the gradient by itself.
  //
  // Returns false if any element of `out` is not finite; the others are
  //   there nevertheless.
  virtual bool FoldGradient(const GradientRun& run) const = 0;

  // Sum of x*x in float64. Element i goes to partial sum i mod 8; the partial
  // sums are added in pairs: the order is the same on every machine.
  virtual double SumOfSquares(absl::Span<const float> x) const = 0;

  // With g = scale * gradient + decay * w:
  //   m' = beta1 * m + (1-beta1) * g;  v' = beta2 * v + (1-beta2) * g * g
  //   w' = keep * w - rate * m' / (sqrt(v') / correction + epsilon)
  //
  // Float32 throughout, each operation rounded once. Outputs may equal the
  //   inputs of the same name.
  // Source: Kingma and Ba, "Adam", 2015, algorithm 1, with epsilon outside
  //   the correction as in PyTorch; keep: Loshchilov and Hutter, "Decoupled
  //   Weight Decay Regularization", 2019, algorithm 2.
  virtual void UpdateAdam(const AdamStep& step, const AdamRun& run) const = 0;

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
};

// Plain loops, one element at a time: the oracle of the tests.
const Backend& ReferenceBackend();

// SIMD by Highway, dispatched at run time to the best instruction set here.
// Uses the calling thread only.
const Backend& CpuBackend();

// Calls task(0) to task(tasks - 1), each once, on any threads and in any
// order, and returns when all have ended.
using ParallelFor =
    std::function<void(int64_t tasks, absl::FunctionRef<void(int64_t)> task)>;

// CpuBackend() with its batch-norm kernels spread over the threads of
// `parallel_for`. How a tensor is cut into tasks depends on its shape only, so
// the bits are those of CpuBackend().
std::unique_ptr<Backend> NewCpuBackend(ParallelFor parallel_for);

}  // namespace cohort::kernels
