#pragma once

#include <cstdint>

#include "common/optimizers.h"

namespace cohort::bench {

// CPU time of the calling thread, so that other programs of the machine do not
// count; and of this process.
double ThreadSeconds();
double ProcessSeconds();

// Median ThreadSeconds() of two contenders that took turns.
struct Duel {
  double cohort = 0;
  double other = 0;

  // Above 1 if Cohort is faster.
  double Ratio() const { return other / cohort; }
};

struct BatchNormSetup {
  // [images, channels, side, side], float32.
  int64_t images = 1;
  int64_t channels = 1;
  int64_t side = 1;
  bool channels_last = false;

  double Mebibytes() const {
    return static_cast<double>(images * channels * side * side) * 4 / (1 << 20);
  }
};

struct BatchNormDuel {
  Duel forward;
  Duel backward;
  // Forward and backward together.
  Duel both;
};

// Training batch norm with weight and bias by the CPU kernels and by LibTorch,
// on the calling thread; both allocate what they return. Set LibTorch's
// threads to 1 before.
BatchNormDuel TimeBatchNorm(const BatchNormSetup& setup, int32_t rounds);

struct FoldSetup {
  OptimizerKind rule = OptimizerKind::kSgd;
  int32_t contributors = 1;
  // float32 weights, in partitions of 1 MiB.
  int64_t elements = 0;
};

// Medians of contenders that took turns, in ThreadSeconds().
struct FoldTimes {
  // Gradients in one piece.
  double whole = 0;
  // Gradients in pieces, as the network delivers them.
  double pieces = 0;
  // A sweep over the same arrays: a sum of those that are read, and a memset of
  // those that are written.
  double sweep = 0;
};

// The server's folds of one step, from RunFold on: gradients, update, new
// buffers and checksum of the weights.
FoldTimes TimeFold(const FoldSetup& setup, int32_t rounds);

}  // namespace cohort::bench
