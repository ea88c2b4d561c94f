// XXH3 as the processor computes it fastest. Only for the files that offer it
// to others: common/byte_rope.cc and common/checksum.cc.
#pragma once

#if COHORT_XXH3_DISPATCH
// The library chooses between SSE2, AVX2 and AVX-512 when the program runs;
// this header lets the names below call that. The results are the same.
#define XXH_STATIC_LINKING_ONLY
#include <xxh_x86dispatch.h>
#else
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif
