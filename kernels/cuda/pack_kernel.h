#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/packet.h"
#include "kernels/cuda/tuning.h"

// Copies between tensors of float32 and one buffer: gradients into the buffer
// that is sent, weights out of the one received.
namespace cohort::kernels::cuda {

// Segments of one launch; their table travels as its argument.
inline constexpr int32_t kSegmentsMax = 512;

// A run of elements of a tensor, and its place in the buffer.
struct DeviceSegment {
  float* tensor = nullptr;
  float* packed = nullptr;
  int64_t count = 0;
  // The first of the launch's blocks that works on it.
  int64_t first_block = 0;
};

struct PackArgs {
  int32_t segments = 0;
  DeviceSegment table[kSegmentsMax] = {};
};

struct PackPlan {
  int64_t blocks = 0;
};

// The last segment whose first block is `block` or before.
COHORT_DEVICE int32_t SegmentOfBlock(const PackArgs& args, int64_t block) {
  int32_t low = 0;
  int32_t high = args.segments - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (args.table[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// kPack: tensors into the buffer. Else out of it.
template <bool kPack>
struct PackKernel {
  static constexpr int kThreads = kStreamThreads;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kWidth = kVectorBytes / sizeof(float);
  using Args = PackArgs;
  using ThePlan = PackPlan;
  struct Shared {};

  template <typename Place>
  static COHORT_DEVICE void Run(const Place& place, Shared& /*shared*/,
                                const PackArgs& args, const PackPlan& /*plan*/,
                                const Exchange& /*exchange*/) {
    const int32_t index = SegmentOfBlock(args, place.block());
    const DeviceSegment& segment = args.table[index];
    const int64_t begin =
        (place.block() - segment.first_block) * kPackBlockElements;
    const int64_t left = segment.count - begin;
    const int64_t count = left < kPackBlockElements ? left : kPackBlockElements;
    const float* from = (kPack ? segment.tensor : segment.packed) + begin;
    float* to = (kPack ? segment.packed : segment.tensor) + begin;
    // Blocks begin at multiples of kWidth, so one look at both suffices.
    const bool aligned =
        (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) %
            kVectorBytes ==
        0;
    const int64_t vectors = aligned ? count / kWidth : 0;
    CopyVectors(place.thread(), vectors, from, to);
    for (int64_t at = vectors * kWidth + place.thread(); at < count;
         at += kThreads) {
      to[at] = from[at];
    }
  }

 private:
  // All loads first, so that they are in flight together.
  static COHORT_DEVICE void CopyVectors(int32_t thread, int64_t vectors,
                                        const float* from, float* to) {
    constexpr int kTurns = kPackBlockElements / kWidth / kThreads;
    Packet<float, kWidth> packets[kTurns] = {};
    COHORT_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const int64_t i = thread + turn * kThreads;
      if (i < vectors) {
        packets[turn] = Load<Reuse::kOnce, kWidth>(from + i * kWidth);
      }
    }
    COHORT_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const int64_t i = thread + turn * kThreads;
      if (i < vectors) Store<Reuse::kSoon>(packets[turn], to + i * kWidth);
    }
  }
};

}  // namespace cohort::kernels::cuda
