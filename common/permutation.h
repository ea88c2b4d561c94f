#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cohort {

// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, portable bits.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  // Uniform in [0, bound), bound > 0, without modulo bias (rejection).
  uint64_t Below(uint64_t bound);
  // Uniform in [0, 1), 53 bits.
  double Uniform();

 private:
  uint64_t state_;
};

// Mixes several numbers into one seed, so that neighbouring tuples give
// unrelated streams.
uint64_t MixSeed(uint64_t a, uint64_t b, uint64_t c = 0);

// The order of samples in one epoch: Fisher-Yates over 0..n-1, driven by
// SplitMix64 from (seed, epoch). The same on every machine; any front-end
// that follows these two sources sees the same order.
std::vector<int64_t> EpochPermutation(uint64_t seed, int64_t epoch, int64_t n);

}  // namespace cohort
