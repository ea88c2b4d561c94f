#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/ids.h"
#include "server/partitions/fold_job.h"

namespace cohort {

// Elements [begin, end) of a partition, all of one slice.
struct SliceBlock {
  // Position in FoldJob::slices.
  size_t slice = 0;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }

  friend bool operator==(const SliceBlock&, const SliceBlock&) = default;
};

// Walks the partition of a fold from front to back in blocks, and each block in
// runs that a kernel can fold: float32 that is contiguous in every gradient.
//
// Blocks are counted from where their slice begins. They do not depend on how
// the network cut the gradients into pieces, so what is computed block by block
// does not either.
class SliceWalker {
 public:
  // Elements [begin, begin + count) of the partition, and where each
  // contributor has them as float32: in rank order, without alignment. Valid
  // until the body returns.
  using RunBody =
      absl::FunctionRef<bool(int64_t begin, int64_t count,
                             absl::Span<const std::byte* const> gradients)>;
  // Elements [begin, begin + count) of the partition.
  using RangeBody = absl::FunctionRef<void(int64_t begin, int64_t count)>;

  // `job` must outlive the walker. Its slices must make up the partition, and
  // each gradient must hold each element once (a caller bug otherwise).
  // Blocks have at most `block_elements`.
  SliceWalker(const FoldJob& job, int64_t block_elements);

  // Moves to the first block, then to the next one. False at the end of the
  // partition.
  bool Next();

  // Valid after Next() has returned true, as everything below.
  const SliceBlock& block() const { return block_; }
  const SliceStep& step() const { return job_.slices[block_.slice]; }

  // Calls `body` for the runs of the block in ascending order, until it returns
  // false. A run ends where a piece of any gradient does. An element that a
  // piece boundary cuts in two is put together and is a separate run.
  // Gradients in bfloat16 are expanded run by run; runs are then short, so that
  // the kernel finds the floats in the first or second-level cache.
  //
  // No other bytes are copied. At the 17 pieces a MiB that the network
  // delivers, joining 64 elements around each boundary gained nothing, and
  // joining blocks of 4096 elements made a fold with SGD up to a fifth slower.
  void ForEachRun(RunBody body);

  // Calls `body` for the frozen elements of the block in ascending order.
  void ForEachFrozen(RangeBody body) const {
    ForEachFrozenIn(block_.begin, block_.end, body);
  }

  // The first contributor, in rank order, with a non-finite value in an element
  // of the block that is not frozen. Absent: all are finite, so only their sum
  // is not.
  std::optional<Rank> NonfiniteRank();

 private:
  using CutFloat = std::array<std::byte, sizeof(float)>;

  // The next `count` elements of contributor `k`, as float32.
  const std::byte* FloatsOf(size_t k, int64_t count);

  void ForEachFrozenIn(int64_t begin, int64_t end, RangeBody body) const;
  void ForEachFreeIn(int64_t begin, int64_t end, RangeBody body) const;

  const FoldJob& job_;
  const int64_t block_elements_;
  // By contributor: at the beginning of the block, and within it.
  std::vector<RopeReader> at_block_;
  std::vector<RopeReader> at_run_;
  std::vector<const std::byte*> gradients_;
  // By contributor: where an element is put together.
  std::vector<CutFloat> cut_floats_;
  // Elements of the longest run.
  int64_t run_elements_ = 0;
  // By contributor, run_elements_ each: expanded gradients. Empty if all are
  // float32.
  std::vector<float> expanded_;
  SliceBlock block_;
  // Where the slice of `block_` ends.
  int64_t slice_end_ = 0;
};

}  // namespace cohort
