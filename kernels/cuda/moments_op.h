#pragma once

#include <cstdint>

#include "kernels/batch_norm_args.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/packet.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/walk.h"

namespace cohort::kernels::cuda {

// The sums of (x - k) and (x - k)^2, k being the channel's first element.
//
// A batch of loads is summed in float32 around one of its elements, the
// pivot, and carried over to float64 around k. Since the pivot is one of the
// batch's n elements, the squares around it are at most n+1 times the batch's
// M2 (twice, as a rule), and so is what float32 rounds of them: wherever k
// lies, an outlier spoils nothing. Between batches there is float64 only.
//
// kColumns: channels that a thread has at once, 1 or kWidth.
template <typename T, int kWidth, int kColumns>
class MomentsOp {
 public:
  using Args = MomentsArgs;
  using Type = T;
  using OneChannel = MomentsOp<T, kWidth, 1>;
  // Eight columns at once need the registers for their sums.
  static constexpr int kItems =
      kColumns == 8 ? kLoadsInFlight * 5 / 8 : kLoadsInFlight;
  static constexpr int kAccess = kWidth;

  struct Item {
    Packet<T, kWidth> x;
  };

  explicit COHORT_DEVICE MomentsOp(const Args& args)
      : x_(static_cast<const T*>(args.x)), inner_(args.shape.inner) {}

  COHORT_DEVICE void Prepare(const int64_t (&channels)[kColumns]) {
    COHORT_UNROLL
    for (int a = 0; a < kColumns; ++a) {
      center_[a] = ToFloat(x_[channels[a] * inner_]);
      sums_[a] = Zero();
    }
  }

  COHORT_DEVICE Item Load(int64_t offset) const {
    return {cuda::Load<Reuse::kSoon, kWidth>(x_ + offset)};
  }

  template <bool kFull>
  COHORT_DEVICE void Visit(const Batch<MomentsOp>& batch) {
    float pivot[kColumns] = {};
    float sum[kColumns] = {};
    float squares[kColumns] = {};
    int vectors = 0;
    COHORT_UNROLL
    for (int u = 0; u < kItems; ++u) {
      if (!kFull && !batch.has(u)) continue;
      float x[kWidth];
      ToFloats(batch.items[u].x, x);
      if (kFull ? u == 0 : vectors == 0) {
        COHORT_UNROLL
        for (int a = 0; a < kColumns; ++a) pivot[a] = x[a];
      }
      COHORT_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        const int a = kColumns == 1 ? 0 : j;
        const float d = Minus(x[j], pivot[a]);
        sum[a] = Plus(sum[a], d);
        squares[a] = TimesPlus(d, d, squares[a]);
      }
      ++vectors;
    }
    CarryOver(vectors * (kWidth / kColumns), pivot, sum, squares);
  }

  // One element, of column `a`.
  COHORT_DEVICE void Single(int64_t offset, int a) {
    const double d = static_cast<double>(ToFloat(x_[offset])) -
                     static_cast<double>(center_[a]);
    AddTo(sums_[a], {d, d * d});
  }

  COHORT_DEVICE Pair sums(int a) const { return sums_[a]; }

  // Source: Chan, Golub, LeVeque, 1983 (shifted data).
  static COHORT_DEVICE void Finish(const Args& args, int64_t channel,
                                   const Pair& total) {
    const auto* x = static_cast<const T*>(args.x);
    const double center = ToFloat(x[channel * args.shape.inner]);
    const double n = static_cast<double>(args.shape.outer * args.shape.inner);
    const double m2 = total.second - total.first * (total.first / n);
    args.mean[channel] = center + total.first / n;
    // Unlike a maximum, this keeps a NaN.
    args.m2[channel] = m2 < 0 ? 0 : m2;
  }

 private:
  // sum (x-k) = S + n*(p-k) and sum (x-k)^2 = Q + (p-k)*(2*S + n*(p-k)), with
  // S and Q around the pivot p.
  COHORT_DEVICE void CarryOver(int count, const float (&pivot)[kColumns],
                               const float (&sum)[kColumns],
                               const float (&squares)[kColumns]) {
    const double n = count;
    COHORT_UNROLL
    for (int a = 0; a < kColumns; ++a) {
      const double far =
          static_cast<double>(pivot[a]) - static_cast<double>(center_[a]);
      const double s = sum[a];
      AddTo(sums_[a], {s + n * far, squares[a] + far * (2 * s + n * far)});
    }
  }

  const T* x_;
  int64_t inner_;
  float center_[kColumns];
  Pair sums_[kColumns];
};

}  // namespace cohort::kernels::cuda
