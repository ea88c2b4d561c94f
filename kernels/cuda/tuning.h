#pragma once

#include <cstdint>

// Every number that was chosen for speed. The sizes of blocks and what depends
// on them fix the order of additions too: other numbers, other last bits.
namespace cohort::kernels::cuda {

// Bytes of the widest access of a thread.
inline constexpr int32_t kVectorBytes = 16;

// Accesses that a thread of a batch-norm kernel has in flight. With 24 warps a
// multiprocessor of an H200 has 96 KB in flight; 700 ns at 4.8 TB/s over 132
// multiprocessors need about 25 KB.
inline constexpr int32_t kLoadsInFlight = 8;
// Where x and dy are read together and registers are short.
inline constexpr int32_t kPairsInFlight = 3;

// Runs: a block works on one channel, and several share a multiprocessor so
// that one loads while another adds its threads' sums up.
inline constexpr int32_t kRunThreads = 256;
inline constexpr int32_t kRunBlocksPerMultiprocessor = 3;
// Shorter runs are seen as periods: fewer than two accesses a lane of a warp.
inline constexpr int64_t kRunElementsMin = 512;

// Periods: one block a multiprocessor, which stays for the whole pass. More
// would double the partial sums that the last block has to add.
inline constexpr int32_t kPeriodThreads = 512;
inline constexpr int32_t kPeriodBlocksPerMultiprocessor = 1;
// Vectors side by side in a tile: 512 bytes of a row, so that few blocks
// share a column and the partial sums stay small. More where rows are few.
inline constexpr int32_t kTileVectors = 32;
inline constexpr int32_t kTileVectorsMax = 128;
// Wider tiles are multiples of this: 128 bytes, a line of the cache.
inline constexpr int32_t kTileStep = 8;

// A block does at least this many accesses a thread before a channel is cut
// into more blocks.
inline constexpr int64_t kAccessesPerThreadMin = 4;

// A grid should fill this share of its last wave of blocks; to get there,
// pieces are made smaller until there are so many waves.
inline constexpr double kWaveEfficiency = 0.95;
inline constexpr int64_t kWavesMax = 8;

// Pack and unpack.
inline constexpr int32_t kStreamThreads = 256;
// Elements of a block: 32 KiB of float32.
inline constexpr int64_t kPackBlockElements = 8192;

}  // namespace cohort::kernels::cuda
