#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::kernels {

// One update of a layer's moving statistics by the moments of a batch:
//
//   mean <- (1 - a) mean + a m        variance <- (1 - a) variance + a M2 / d
//
// computed in float64 from values that are float32 and rounded to float32, so
// that a worker and the server get the same bits. `T` is the type of storage:
// float, or double for values that are float32.
//
// Shapes: all of [channels].
// Source: torch.nn.BatchNorm2d, where d = n - 1.
struct MovingAverage {
  // a, in [0, 1].
  double weight = 0;
  // d; 0: the variance stays, as one element has no unbiased one.
  double divisor = 0;
  size_t channels = 0;
  const double* batch_mean = nullptr;
  const double* batch_m2 = nullptr;
};

template <typename T>
void UpdateMovingAverage(const MovingAverage& by, T* mean, T* variance) {
  const double a = by.weight;
  for (size_t c = 0; c < by.channels; ++c) {
    mean[c] = static_cast<float>((1 - a) * static_cast<double>(mean[c]) +
                                 a * by.batch_mean[c]);
    if (by.divisor == 0) continue;
    variance[c] =
        static_cast<float>((1 - a) * static_cast<double>(variance[c]) +
                           a * (by.batch_m2[c] / by.divisor));
  }
}

}  // namespace cohort::kernels
