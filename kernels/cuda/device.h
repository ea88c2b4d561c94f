#pragma once

// The kernels are templates that both compilers see: nvcc makes them kernels,
// and the tests run them on a processor, thread by thread (tests/gpu), which
// finds every mistake of index or order without a GPU.

#if defined(__CUDACC__)
#define COHORT_DEVICE __device__ __forceinline__
#define COHORT_UNROLL _Pragma("unroll")
#else
#include <bit>
#include <cmath>
#define COHORT_DEVICE inline
#define COHORT_UNROLL
#endif

#include <cstdint>

namespace cohort::kernels::cuda {

// Two sums of one channel. Without initialisers, for shared memory has none.
struct alignas(16) Pair {
  double first;
  double second;
};

COHORT_DEVICE Pair Zero() { return {0, 0}; }

COHORT_DEVICE void AddTo(Pair& sum, const Pair& part) {
  sum.first += part.first;
  sum.second += part.second;
}

// Float32, each rounded once and never contracted by the compiler: the mask of
// a ReLU is recomputed, and has to meet the same bits.
#if defined(__CUDACC__)
COHORT_DEVICE float Plus(float a, float b) { return __fadd_rn(a, b); }
COHORT_DEVICE float Minus(float a, float b) { return __fsub_rn(a, b); }
COHORT_DEVICE float Times(float a, float b) { return __fmul_rn(a, b); }
// a*b + c, rounded once.
COHORT_DEVICE float TimesPlus(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
COHORT_DEVICE float FloatOfBits(uint32_t bits) { return __uint_as_float(bits); }
COHORT_DEVICE uint32_t BitsOfFloat(float x) { return __float_as_uint(x); }
#else
COHORT_DEVICE float Plus(float a, float b) { return a + b; }
COHORT_DEVICE float Minus(float a, float b) { return a - b; }
COHORT_DEVICE float Times(float a, float b) { return a * b; }
COHORT_DEVICE float TimesPlus(float a, float b, float c) {
  return std::fma(a, b, c);
}
COHORT_DEVICE float FloatOfBits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
COHORT_DEVICE uint32_t BitsOfFloat(float x) {
  return std::bit_cast<uint32_t>(x);
}
#endif

COHORT_DEVICE bool IsFinite(float x) {
  return (BitsOfFloat(x) & 0x7f800000) != 0x7f800000;
}

}  // namespace cohort::kernels::cuda
