#pragma once

namespace cohort {

// From now on the C library keeps the memory that this process frees for its
// next allocations, instead of giving large blocks back to the kernel at once.
// The process stays as large as it was at most; MALLOC_ variables of the
// environment have no effect on this any more.
//
// Each step allocates the same activations, gradients and messages. A block
// that was given back must be mapped and cleared again, one page fault for each
// 4 KiB. In a Python worker these were 12 % of a step of `cnn` with 64 images
// (tests/bench/ddp_bench.py on two cores, with mallopt replaced by a function
// that does nothing, and as it is: 1460 and 1672 images/s); cohort-worker
// showed no difference there.
//
// No-op where the C library is not glibc. Blocks above 64 MiB of threads that
// are not the main one are still given back.
// Thread safety: call it before other threads allocate much.
void KeepFreedMemory();

}  // namespace cohort
