#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/packet.h"
#include "kernels/cuda/tuning.h"
#include "kernels/data_type.h"

// Casts between tensors of any of the three types and one buffer of float32:
// gradients into the buffer that is sent, weights out of the one received.
namespace cohort::kernels::cuda {

// Segments of one launch; their table travels as its argument.
inline constexpr int32_t kSegmentsMax = 512;

// A run of elements of a tensor, and its place in the buffer.
struct DeviceSegment {
  void* tensor = nullptr;
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
template <typename T, bool kPack>
struct PackKernel {
  static constexpr int kThreads = kStreamThreads;
  static constexpr int kBlocksPerMultiprocessor = 4;
  // Elements of 16 bytes of the tensor.
  static constexpr int kWidth = kVectorBytes / sizeof(T);
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
    const int64_t end = begin + kPackBlockElements < segment.count
                            ? begin + kPackBlockElements
                            : segment.count;
    T* tensor = static_cast<T*>(segment.tensor);
    // Blocks begin at multiples of kWidth, so one look at both suffices.
    const bool aligned = (reinterpret_cast<uintptr_t>(tensor) |
                          reinterpret_cast<uintptr_t>(segment.packed)) %
                             kVectorBytes ==
                         0;
    const int64_t vectors = aligned ? (end - begin) / kWidth : 0;
    CopyVectors(place.thread(), vectors, tensor + begin,
                segment.packed + begin);
    for (int64_t at = begin + vectors * kWidth + place.thread(); at < end;
         at += kThreads) {
      if constexpr (kPack) {
        segment.packed[at] = ToFloat(tensor[at]);
      } else {
        SetFrom(segment.packed[at], tensor[at]);
      }
    }
  }

 private:
  // All loads first, so that they are in flight together.
  static COHORT_DEVICE void CopyVectors(int32_t thread, int64_t vectors,
                                        T* tensor, float* packed) {
    constexpr int kTurns = kPackBlockElements / kWidth / kThreads;
    float values[kTurns][kWidth] = {};
    COHORT_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const int64_t i = thread + turn * kThreads;
      if (i < vectors) {
        Read(tensor + i * kWidth, packed + i * kWidth, values[turn]);
      }
    }
    COHORT_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const int64_t i = thread + turn * kThreads;
      if (i < vectors) {
        Write(values[turn], tensor + i * kWidth, packed + i * kWidth);
      }
    }
  }

  static COHORT_DEVICE void Read(const T* tensor, const float* packed,
                                 float (&values)[kWidth]) {
    if constexpr (kPack) {
      ToFloats(Load<Reuse::kOnce, kWidth>(tensor), values);
    } else {
      COHORT_UNROLL
      for (int j = 0; j < kWidth; j += 4) {
        float four[4];
        ToFloats(Load<Reuse::kOnce, 4>(packed + j), four);
        COHORT_UNROLL
        for (int i = 0; i < 4; ++i) values[j + i] = four[i];
      }
    }
  }

  static COHORT_DEVICE void Write(const float (&values)[kWidth], T* tensor,
                                  float* packed) {
    if constexpr (kPack) {
      COHORT_UNROLL
      for (int j = 0; j < kWidth; j += 4) {
        float four[4];
        COHORT_UNROLL
        for (int i = 0; i < 4; ++i) four[i] = values[j + i];
        Packet<float, 4> packet;
        FromFloats(four, packet);
        Store<Reuse::kSoon>(packet, packed + j);
      }
    } else {
      Packet<T, kWidth> packet;
      FromFloats(values, packet);
      Store<Reuse::kSoon>(packet, tensor);
    }
  }
};

}  // namespace cohort::kernels::cuda
