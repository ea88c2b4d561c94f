#include "common/host_memory.h"

#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <limits>

namespace cohort {

void KeepFreedMemory() {
#ifdef __GLIBC__
  constexpr int kMost = std::numeric_limits<int>::max();
  // Blocks from this size on have a separate mapping, which ends with them.
  // glibc before 2.36 refuses more than 32 MiB: there no block has one.
  if (mallopt(M_MMAP_THRESHOLD, kMost) == 0) mallopt(M_MMAP_MAX, 0);
  // The heap's free end is given back when it is larger.
  mallopt(M_TRIM_THRESHOLD, kMost);
  // Threads allocate in heaps of 64 MiB. One that is free as a whole is given
  // back unless this much may stay at the end of the one before.
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace cohort
