#pragma once

#include <cstdint>

#include "kernels/batch_norm_args.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/factors.h"
#include "kernels/cuda/packet.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/walk.h"

namespace cohort::kernels::cuda {

// Where the mask of a fused ReLU comes from.
enum class Mask { kNone, kFromX, kFromY };

// The sums of dz and dz * (x - near), near being the mean rounded to float32;
// Finish moves the second to the mean itself. A batch of loads is summed in
// float32, batches are summed in float64.
template <typename T, int kWidth, int kColumns, Mask kMask>
class BackwardReduceOp {
 public:
  using Args = BackwardReduceArgs;
  using Type = T;
  using OneChannel = BackwardReduceOp<T, kWidth, 1, kMask>;
  // A recomputed mask needs registers for its factors, a read one another load.
  static constexpr int kItems =
      kMask == Mask::kNone ? kLoadsInFlight / 2
                           : (kMask == Mask::kFromX ? kPairsInFlight : 2);
  static constexpr int kAccess = kWidth;

  struct Item {
    Packet<T, kWidth> x;
    Packet<T, kWidth> dy;
    // Only with Mask::kFromY.
    Packet<T, kWidth> y;
  };

  explicit COHORT_DEVICE BackwardReduceOp(const Args& args)
      : args_(args),
        x_(static_cast<const T*>(args.x)),
        dy_(static_cast<const T*>(args.dy)),
        y_(static_cast<const T*>(args.y)),
        dz_(kMask == Mask::kNone ? nullptr : static_cast<T*>(args.dz)) {}

  COHORT_DEVICE void Prepare(const int64_t (&channels)[kColumns]) {
    COHORT_UNROLL
    for (int a = 0; a < kColumns; ++a) {
      if constexpr (kMask == Mask::kFromX) {
        factors_[a] = ForwardFactorsOf(args_, channels[a]);
      } else {
        factors_[a].near = static_cast<float>(args_.mean[channels[a]]);
      }
      sums_[a] = Zero();
    }
  }

  COHORT_DEVICE Item Load(int64_t offset) const {
    Item item;
    item.x = cuda::Load<Reuse::kSoon, kWidth>(x_ + offset);
    item.dy = cuda::Load<Reuse::kSoon, kWidth>(dy_ + offset);
    if constexpr (kMask == Mask::kFromY) {
      item.y = cuda::Load<Reuse::kOnce, kWidth>(y_ + offset);
    }
    return item;
  }

  template <bool kFull>
  COHORT_DEVICE void Visit(const Batch<BackwardReduceOp>& batch) {
    float sum[kColumns] = {};
    float products[kColumns] = {};
    COHORT_UNROLL
    for (int u = 0; u < kItems; ++u) {
      if (!kFull && !batch.has(u)) continue;
      float x[kWidth];
      float dz[kWidth];
      ToFloats(batch.items[u].x, x);
      MaskedGradient(batch.items[u], x, dz);
      COHORT_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        const int a = kColumns == 1 ? 0 : j;
        sum[a] = Plus(sum[a], dz[j]);
        products[a] =
            TimesPlus(dz[j], Minus(x[j], factors_[a].near), products[a]);
      }
      StoreGradient(dz, batch.offsets[u]);
    }
    COHORT_UNROLL
    for (int a = 0; a < kColumns; ++a) {
      AddTo(sums_[a], {sum[a], products[a]});
    }
  }

  COHORT_DEVICE void Single(int64_t offset, int a) {
    const float x = ToFloat(x_[offset]);
    float dz = ToFloat(dy_[offset]);
    if (!PassesAt(x, offset, a)) dz = 0;
    if (dz_ != nullptr) SetFrom(dz, dz_[offset]);
    const double g = dz;
    AddTo(sums_[a], {g, g * (static_cast<double>(x) - factors_[a].near)});
  }

  COHORT_DEVICE Pair sums(int a) const { return sums_[a]; }

  static COHORT_DEVICE void Finish(const Args& args, int64_t channel,
                                   const Pair& total) {
    const double mean = args.mean[channel];
    const double left = mean - static_cast<float>(mean);
    args.sum_dy[channel] = total.first;
    args.sum_dy_xmu[channel] = total.second - left * total.first;
  }

 private:
  COHORT_DEVICE void MaskedGradient(const Item& item, const float (&x)[kWidth],
                                    float (&dz)[kWidth]) const {
    ToFloats(item.dy, dz);
    if constexpr (kMask == Mask::kFromX) {
      COHORT_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        const int a = kColumns == 1 ? 0 : j;
        if (!Passes<T>(Activation(x[j], factors_[a]))) dz[j] = 0;
      }
    }
    if constexpr (kMask == Mask::kFromY) {
      float y[kWidth];
      ToFloats(item.y, y);
      COHORT_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        if (y[j] <= 0) dz[j] = 0;
      }
    }
  }

  COHORT_DEVICE bool PassesAt(float x, int64_t offset, int a) const {
    if constexpr (kMask == Mask::kFromX) {
      return Passes<T>(Activation(x, factors_[a]));
    }
    if constexpr (kMask == Mask::kFromY) return !(ToFloat(y_[offset]) <= 0);
    return true;
  }

  COHORT_DEVICE void StoreGradient(const float (&dz)[kWidth],
                                   int64_t offset) const {
    if (dz_ == nullptr) return;
    Packet<T, kWidth> packet;
    FromFloats(dz, packet);
    Store<Reuse::kSoon>(packet, dz_ + offset);
  }

  const Args& args_;
  const T* x_;
  const T* dy_;
  const T* y_;
  T* dz_;
  ForwardFactors factors_[kColumns];
  Pair sums_[kColumns];
};

}  // namespace cohort::kernels::cuda
