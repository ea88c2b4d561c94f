#pragma once

#include <cstdint>

#include "kernels/data_type.h"

// Arguments of the batch-norm kernels of every backend. Plain data, so that
// CUDA sources can include them.
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

}  // namespace cohort::kernels
