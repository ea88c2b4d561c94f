#include "common/permutation.h"

#include <numeric>
#include <utility>

namespace cohort {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t Finalize(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t SplitMix64::Next() {
  state_ += kGolden;
  return Finalize(state_);
}

uint64_t SplitMix64::Below(uint64_t bound) {
  // Values under 2^64 mod bound would make the low results more likely.
  const uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const uint64_t value = Next();
    if (value >= threshold) return value % bound;
  }
}

double SplitMix64::Uniform() {
  return static_cast<double>(Next() >> 11) * 0x1.0p-53;
}

uint64_t MixSeed(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t mixed = Finalize(a + kGolden);
  mixed = Finalize(mixed ^ (b + 2 * kGolden));
  return Finalize(mixed ^ (c + 3 * kGolden));
}

std::vector<int64_t> EpochPermutation(uint64_t seed, int64_t epoch, int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  SplitMix64 random(MixSeed(seed, static_cast<uint64_t>(epoch)));
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.Below(i)]);
  }
  return order;
}

}  // namespace cohort
