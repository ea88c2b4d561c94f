#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/packet.h"
#include "kernels/cuda/tuning.h"

// The fold of all contributors' gradients and the SGD update in the same pass:
// float64 sums in rank order, rounded to float32 once, and float32 without
// contraction, so the bits are those of every other backend.
namespace cohort::kernels::cuda {

// Contributors' addresses travel as an argument of the kernel, of 32 KiB at
// most.
inline constexpr int32_t kContributorsMax = 1024;

struct FoldArgs {
  float gradient_scale = 1;
  float learning_rate = 0;
  float weight_decay = 0;
  float momentum = 0;
  bool nesterov = false;
  int64_t count = 0;
  const float* weights_in = nullptr;
  float* weights_out = nullptr;
  const float* velocity_in = nullptr;
  float* velocity_out = nullptr;
  // Set to 1 if any element of the folded gradient is not finite.
  int32_t* nonfinite = nullptr;
  int32_t contributors = 0;
  const float* gradients[kContributorsMax] = {};
};

// Elements of an access, and blocks.
struct FoldPlan {
  int32_t width = 1;
  int64_t blocks = 0;
};

// The update of one element by its folded gradient.
struct FoldUpdate {
  float weight;
  float velocity;
};

COHORT_DEVICE FoldUpdate UpdateOne(const FoldArgs& args, float folded, float w,
                                   float velocity) {
  const float g = Plus(folded, Times(args.weight_decay, w));
  FoldUpdate update = {0, 0};
  float change = g;
  if (args.momentum != 0) {
    const float v = Plus(Times(args.momentum, velocity), g);
    update.velocity = v;
    change = args.nesterov ? Plus(g, Times(args.momentum, v)) : v;
  }
  update.weight = Minus(w, Times(args.learning_rate, change));
  return update;
}

template <int kWidth>
struct FoldKernel {
  static constexpr int kThreads = kStreamThreads;
  static constexpr int kBlocksPerMultiprocessor = 4;
  using Args = FoldArgs;
  using ThePlan = FoldPlan;
  struct Shared {};

  template <typename Place>
  static COHORT_DEVICE void Run(const Place& place, Shared& /*shared*/,
                                const FoldArgs& args, const FoldPlan& /*plan*/,
                                const Exchange& /*exchange*/) {
    const int64_t first = place.block() * kThreads + place.thread();
    const int64_t step = place.blocks() * kThreads;
    const int64_t vectors = args.count / kWidth;
    bool finite = true;
    for (int64_t i = first; i < vectors; i += step) {
      finite = Update<kWidth>(args, i * kWidth) && finite;
    }
    // Less than a vector is left.
    const int64_t behind = vectors * kWidth + first;
    if (behind < args.count) finite = Update<1>(args, behind) && finite;
    // The same from every thread that writes it: no order to keep.
    if (!finite) *args.nonfinite = 1;
  }

 private:
  // Whether the folded gradient of the elements at `at` is finite.
  template <int kElements>
  static COHORT_DEVICE bool Update(const FoldArgs& args, int64_t at) {
    double sums[kElements] = {};
#if defined(__CUDACC__)
#pragma unroll 4
#endif
    for (int32_t k = 0; k < args.contributors; ++k) {
      float g[kElements];
      ToFloats(Load<Reuse::kOnce, kElements>(args.gradients[k] + at), g);
      COHORT_UNROLL
      for (int j = 0; j < kElements; ++j) sums[j] += g[j];
    }
    float w[kElements];
    float v[kElements] = {};
    ToFloats(Load<Reuse::kSoon, kElements>(args.weights_in + at), w);
    if (args.momentum != 0) {
      ToFloats(Load<Reuse::kSoon, kElements>(args.velocity_in + at), v);
    }
    bool finite = true;
    COHORT_UNROLL
    for (int j = 0; j < kElements; ++j) {
      const float folded =
          Times(args.gradient_scale, static_cast<float>(sums[j]));
      finite = finite && IsFinite(folded);
      const FoldUpdate update = UpdateOne(args, folded, w[j], v[j]);
      w[j] = update.weight;
      v[j] = update.velocity;
    }
    Packet<float, kElements> packet;
    FromFloats(w, packet);
    Store<Reuse::kSoon>(packet, args.weights_out + at);
    if (args.momentum != 0) {
      FromFloats(v, packet);
      Store<Reuse::kSoon>(packet, args.velocity_out + at);
    }
    return finite;
  }
};

}  // namespace cohort::kernels::cuda
