#pragma once

#include <cstdint>

#include "kernels/batch_norm_args.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/factors.h"
#include "kernels/cuda/packet.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/walk.h"

namespace cohort::kernels::cuda {

// y = relu(activation + add), rounded once to float32 and once to T.
template <typename T, int kWidth, int kColumns, bool kAdd>
class NormalizeOp {
 public:
  using Args = NormalizeArgs;
  using OneChannel = NormalizeOp<T, kWidth, 1, kAdd>;
  // Runs have more warps at once, and fewer registers each.
  static constexpr int kItems =
      kLoadsInFlight / (kAdd || kColumns == 1 ? 2 : 1);
  static constexpr int kAccess = kWidth;

  struct Item {
    Packet<T, kWidth> x;
    // Only with kAdd.
    Packet<T, kWidth> z;
  };

  explicit COHORT_DEVICE NormalizeOp(const Args& args)
      : args_(args),
        x_(static_cast<const T*>(args.x)),
        z_(static_cast<const T*>(args.add)),
        y_(static_cast<T*>(args.y)) {}

  COHORT_DEVICE void Prepare(const int64_t (&channels)[kColumns]) {
    COHORT_UNROLL
    for (int a = 0; a < kColumns; ++a) {
      factors_[a] = ForwardFactorsOf(args_, channels[a]);
    }
  }

  COHORT_DEVICE Item Load(int64_t offset) const {
    Item item;
    item.x = cuda::Load<Reuse::kOnce, kWidth>(x_ + offset);
    if constexpr (kAdd) {
      item.z = cuda::Load<Reuse::kOnce, kWidth>(z_ + offset);
    }
    return item;
  }

  template <bool kFull>
  COHORT_DEVICE void Visit(const Batch<NormalizeOp>& batch) {
    COHORT_UNROLL
    for (int u = 0; u < kItems; ++u) {
      if (!kFull && !batch.has(u)) continue;
      float y[kWidth];
      float z[kWidth] = {};
      ToFloats(batch.items[u].x, y);
      if constexpr (kAdd) ToFloats(batch.items[u].z, z);
      COHORT_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        y[j] = Value(y[j], z[j], kColumns == 1 ? 0 : j);
      }
      Packet<T, kWidth> packet;
      FromFloats(y, packet);
      Store<Reuse::kOnce>(packet, y_ + batch.offsets[u]);
    }
  }

  COHORT_DEVICE void Single(int64_t offset, int a) {
    const float z = kAdd ? ToFloat(z_[offset]) : 0;
    SetFrom(Value(ToFloat(x_[offset]), z, a), y_[offset]);
  }

 private:
  COHORT_DEVICE float Value(float x, float z, int a) const {
    float value = Activation(x, factors_[a]);
    if constexpr (kAdd) value = Plus(value, z);
    // NaN passes, and -0 does not.
    return args_.relu && value <= 0 ? 0 : value;
  }

  const Args& args_;
  const T* x_;
  const T* z_;
  T* y_;
  ForwardFactors factors_[kColumns];
};

// dx, with the mask of a ReLU recomputed (kRelu) or statistics that are
// constants (kFrozen). x is read only where it is needed.
template <typename T, int kWidth, int kColumns, bool kRelu, bool kFrozen>
class BackwardElementwiseOp {
 public:
  using Args = BackwardElementwiseArgs;
  using OneChannel = BackwardElementwiseOp<T, kWidth, 1, kRelu, kFrozen>;
  static constexpr bool kReadsX = kRelu || !kFrozen;
  static constexpr int kItems =
      kReadsX ? kPairsInFlight : kLoadsInFlight / (kColumns == 1 ? 2 : 1);
  static constexpr int kAccess = kWidth;

  struct Item {
    Packet<T, kWidth> dy;
    // Only with kReadsX.
    Packet<T, kWidth> x;
  };

  explicit COHORT_DEVICE BackwardElementwiseOp(const Args& args)
      : args_(args),
        x_(static_cast<const T*>(args.x)),
        dy_(static_cast<const T*>(args.dy)),
        dx_(static_cast<T*>(args.dx)) {}

  COHORT_DEVICE void Prepare(const int64_t (&channels)[kColumns]) {
    COHORT_UNROLL
    for (int a = 0; a < kColumns; ++a) {
      if constexpr (kRelu) {
        forward_[a] = ForwardFactorsOf(args_, channels[a]);
      } else {
        forward_[a].near = static_cast<float>(args_.mean[channels[a]]);
      }
      backward_[a] = BackwardFactorsOf(args_, channels[a]);
    }
  }

  COHORT_DEVICE Item Load(int64_t offset) const {
    Item item;
    item.dy = cuda::Load<Reuse::kOnce, kWidth>(dy_ + offset);
    if constexpr (kReadsX) {
      item.x = cuda::Load<Reuse::kOnce, kWidth>(x_ + offset);
    }
    return item;
  }

  template <bool kFull>
  COHORT_DEVICE void Visit(const Batch<BackwardElementwiseOp>& batch) {
    COHORT_UNROLL
    for (int u = 0; u < kItems; ++u) {
      if (!kFull && !batch.has(u)) continue;
      float x[kWidth] = {};
      float dx[kWidth];
      if constexpr (kReadsX) ToFloats(batch.items[u].x, x);
      ToFloats(batch.items[u].dy, dx);
      COHORT_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        dx[j] = Value(x[j], dx[j], kColumns == 1 ? 0 : j);
      }
      Packet<T, kWidth> packet;
      FromFloats(dx, packet);
      Store<Reuse::kOnce>(packet, dx_ + batch.offsets[u]);
    }
  }

  COHORT_DEVICE void Single(int64_t offset, int a) {
    const float x = kReadsX ? ToFloat(x_[offset]) : 0;
    SetFrom(Value(x, ToFloat(dy_[offset]), a), dx_[offset]);
  }

 private:
  COHORT_DEVICE float Value(float x, float dz, int a) const {
    if constexpr (kRelu) {
      if (!Passes<T>(Activation(x, forward_[a]))) dz = 0;
    }
    const BackwardFactors& f = backward_[a];
    if constexpr (kFrozen) return Times(dz, f.scale);
    const float distance = Minus(x, forward_[a].near);
    return TimesPlus(dz, f.scale, TimesPlus(distance, f.slope, f.shift));
  }

  const Args& args_;
  const T* x_;
  const T* dy_;
  T* dx_;
  ForwardFactors forward_[kColumns];
  BackwardFactors backward_[kColumns];
};

}  // namespace cohort::kernels::cuda
