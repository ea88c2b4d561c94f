#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/packet.h"

// Joint operations of the threads of a block and of the blocks of a launch.
// `Place` is a thread's place in the launch: DeviceThread on a GPU, a fibre in
// tests.
//
//   int32_t thread() const;   in its block
//   int64_t block() const;    in the launch
//   int64_t blocks() const;
//   void Sync() const;        waits for the block; shared and global memory
//                             written before is seen behind it
//   bool LastToArrive(uint32_t* counter, int64_t parties, bool& flag) const;
//
// LastToArrive is called by all threads of a block and says to all of them
// whether theirs is the last of `parties` blocks. What the others wrote before
// is then there (LoadShared). The counter goes from 0 back to 0. `flag` is
// shared memory.
namespace cohort::kernels::cuda {

#if defined(__CUDACC__)
struct DeviceThread {
  __device__ int32_t thread() const {
    return static_cast<int32_t>(threadIdx.x);
  }
  __device__ int64_t block() const { return blockIdx.x; }
  __device__ int64_t blocks() const { return gridDim.x; }
  __device__ void Sync() const { __syncthreads(); }

  __device__ bool LastToArrive(uint32_t* counter, int64_t parties,
                               bool& flag) const {
    if (parties == 1) {
      __syncthreads();
      return true;
    }
    // Each thread's writes before the block's arrival, for all to see.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto last = static_cast<uint32_t>(parties - 1);
      // Wraps to 0 at the last arrival.
      flag = atomicInc(counter, last) == last;
    }
    __syncthreads();
    const bool is_last = flag;
    // No read happens before the arrivals were seen, and the flag may be
    // written again.
    __threadfence();
    __syncthreads();
    return is_last;
  }
};
#endif

// Global memory that blocks share. Counters are zero before and after.
struct Exchange {
  uint32_t* counters = nullptr;
  Pair* pairs = nullptr;
};

// The sum of all threads' pairs, for thread 0; a fixed tree. `kThreads` is a
// power of two, `tree` has kThreads / 2 pairs of shared memory.
template <int kThreads, typename Place>
COHORT_DEVICE Pair BlockSum(const Place& place, Pair* tree, Pair mine) {
  const int32_t thread = place.thread();
  for (int32_t step = kThreads / 2; step > 0; step /= 2) {
    if (thread >= step && thread < 2 * step) tree[thread - step] = mine;
    place.Sync();
    if (thread < step) AddTo(mine, tree[thread]);
    place.Sync();
  }
  return mine;
}

// Adds pairs[0], pairs[stride], ... `count` of them, of other blocks.
COHORT_DEVICE Pair SumOfShared(const Pair* pairs, int64_t count,
                               int64_t stride) {
  Pair sum = Zero();
#if defined(__CUDACC__)
#pragma unroll 8
#endif
  for (int64_t i = 0; i < count; ++i) {
    AddTo(sum, LoadShared(pairs + i * stride));
  }
  return sum;
}

}  // namespace cohort::kernels::cuda
