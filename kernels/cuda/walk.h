#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/plan.h"

// Which elements a thread visits. No division but where it starts.
namespace cohort::kernels::cuda {

// A pass that follows another over the same tensors walks backwards: what the
// first read last is still in the cache.
enum class Direction { kForwards, kBackwards };

// A thread's vectors of one channel.
class RunCursor {
 public:
  COHORT_DEVICE RunCursor(const RunPlan& plan, int64_t channel, int64_t split,
                          int32_t thread, int32_t threads, Direction direction)
      : plan_(plan), sample_(plan.channels * plan.inner) {
    const int64_t begin = split * plan.vectors_per_split;
    const int64_t all = plan.outer * plan.vectors;
    const int64_t end = begin + plan.vectors_per_split < all
                            ? begin + plan.vectors_per_split
                            : all;
    if (begin + thread >= end) return;
    left_ = (end - begin - thread + threads - 1) / threads;
    const bool forwards = direction == Direction::kForwards;
    const int64_t first = begin + thread + (forwards ? 0 : left_ - 1) * threads;
    vector_ = first % plan.vectors;
    run_ = first / plan.vectors * sample_ + channel * plan.inner;
    const int64_t sign = forwards ? 1 : -1;
    vector_step_ = sign * (threads % plan.vectors);
    run_step_ = sign * (threads / plan.vectors) * sample_;
  }

  COHORT_DEVICE int64_t left() const { return left_; }
  // True: Next() never gives -1.
  COHORT_DEVICE bool always_whole() const { return !plan_.edges; }

  // The element where the next vector begins; -1 if this run, which does not
  // start at a boundary, has none there. Requires left() > 0.
  COHORT_DEVICE int64_t Next() {
    int64_t offset = run_ + vector_ * plan_.width;
    if (plan_.edges) {
      const int64_t head =
          (plan_.width - (plan_.shift + run_)) & (plan_.width - 1);
      const bool whole = head + (vector_ + 1) * plan_.width <= plan_.inner;
      offset = whole ? offset + head : -1;
    }
    --left_;
    vector_ += vector_step_;
    run_ += run_step_;
    if (vector_ >= plan_.vectors) {
      vector_ -= plan_.vectors;
      run_ += sample_;
    } else if (vector_ < 0) {
      vector_ += plan_.vectors;
      run_ -= sample_;
    }
    return offset;
  }

 private:
  const RunPlan& plan_;
  const int64_t sample_;
  int64_t left_ = 0;
  // The vector in its run, and the run's first element.
  int64_t vector_ = 0;
  int64_t run_ = 0;
  int64_t vector_step_ = 0;
  int64_t run_step_ = 0;
};

// Calls f(element) for this thread's share of the elements of the channel that
// are in no vector: less than one before and one behind the vectors of a run.
template <typename F>
COHORT_DEVICE void ForEachEdge(const RunPlan& plan, int64_t channel,
                               int64_t split, int32_t thread, int32_t threads,
                               F f) {
  if (!plan.edges) return;
  const int64_t width = plan.width;
  const int64_t all = plan.outer * 2 * width;
  for (int64_t i = split * threads + thread; i < all;
       i += plan.splits * threads) {
    // Powers of two, known to be positive.
    const int64_t run =
        (i / (2 * width) * plan.channels + channel) * plan.inner;
    const int64_t place = i % (2 * width);
    int64_t head = (width - (plan.shift + run)) & (width - 1);
    if (head > plan.inner) head = plan.inner;
    if (place < width) {
      if (place < head) f(run + place);
    } else {
      const int64_t behind = head + (plan.inner - head) / width * width;
      const int64_t at = behind + place - width;
      if (at < plan.inner) f(run + at);
    }
  }
}

// A thread's place in a tile, and its vectors: one column of them.
class PeriodCursor {
 public:
  COHORT_DEVICE PeriodCursor(const PeriodPlan& plan, int64_t tile,
                             int64_t split, int32_t thread,
                             Direction direction) {
    lane_ = thread / plan.tile_vectors;
    place_ = thread % plan.tile_vectors;
    const int64_t vector = tile * plan.tile_vectors + place_;
    active_ = lane_ < plan.lanes && vector * plan.width < plan.row_elements;
    column_ = vector * plan.width;
    if (!active_) return;
    const int64_t first = split * plan.rows_per_split + lane_;
    const int64_t end = first - lane_ + plan.rows_per_split < plan.rows
                            ? first - lane_ + plan.rows_per_split
                            : plan.rows;
    if (first >= end) return;
    left_ = (end - first + plan.lanes - 1) / plan.lanes;
    const bool forwards = direction == Direction::kForwards;
    const int64_t row = first + (forwards ? 0 : left_ - 1) * plan.lanes;
    offset_ = plan.head + row * plan.row_elements + column_;
    step_ = (forwards ? 1 : -1) * plan.lanes * plan.row_elements;
  }

  // False for threads beyond the tile.
  COHORT_DEVICE bool active() const { return active_; }
  COHORT_DEVICE int32_t lane() const { return lane_; }
  // Vectors to the left of it in the tile.
  COHORT_DEVICE int32_t place() const { return place_; }
  // Index of the column's first element in a row.
  COHORT_DEVICE int64_t column() const { return column_; }

  COHORT_DEVICE int64_t left() const { return left_; }
  COHORT_DEVICE bool always_whole() const { return true; }
  COHORT_DEVICE int64_t Next() {
    const int64_t offset = offset_;
    --left_;
    offset_ += step_;
    return offset;
  }

 private:
  bool active_ = false;
  int32_t lane_ = 0;
  int32_t place_ = 0;
  int64_t column_ = 0;
  int64_t left_ = 0;
  int64_t offset_ = 0;
  int64_t step_ = 0;
};

// The channels of `kWidth` positions from `position` on.
template <int kWidth>
COHORT_DEVICE void ChannelsAt(const PeriodPlan& plan, int64_t position,
                              int64_t (&channels)[kWidth]) {
  int64_t channel = position / plan.inner % plan.channels;
  int64_t in_run = position % plan.inner;
  COHORT_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    channels[j] = channel;
    if (++in_run == plan.inner) {
      in_run = 0;
      channel = channel + 1 == plan.channels ? 0 : channel + 1;
    }
  }
}

// Calls f(element, j) for the elements of this thread's column in the
// incomplete row behind the others; the last block of the tile has it.
template <int kWidth, typename F>
COHORT_DEVICE void ForEachOfRest(const PeriodPlan& plan, int64_t split,
                                 const PeriodCursor& cursor, F f) {
  if (split != plan.splits - 1 || !cursor.active() || cursor.lane() != 0) {
    return;
  }
  const int64_t begin = plan.head + plan.rows * plan.row_elements;
  COHORT_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    const int64_t at = cursor.column() + j;
    if (at < plan.rest) f(begin + at, j);
  }
}

// The element before the rows that this thread of the first block takes; -1
// if none. A head has fewer elements than a block has threads.
COHORT_DEVICE int64_t HeadElement(const PeriodPlan& plan, int64_t tile,
                                  int64_t split, int32_t thread) {
  return tile == 0 && split == 0 && thread < plan.head ? thread : -1;
}

// First position of a tile, and the one behind its last.
COHORT_DEVICE int64_t TileBegin(const PeriodPlan& plan, int64_t tile) {
  return tile == 0 ? 0 : plan.head + tile * plan.tile_vectors * plan.width;
}
COHORT_DEVICE int64_t TileEnd(const PeriodPlan& plan, int64_t tile) {
  const int64_t end = (tile + 1) * plan.tile_vectors * plan.width;
  return plan.head + (end < plan.row_elements ? end : plan.row_elements);
}

// Calls f(tile, slot) for every part of the channel's sums, in a fixed order:
// slot is the run, counted from the first that the tile touches.
template <typename F>
COHORT_DEVICE void ForEachPart(const PeriodPlan& plan, int64_t channel, F f) {
  const int64_t end = plan.head + plan.row_elements;
  const int64_t tile_elements =
      static_cast<int64_t>(plan.tile_vectors) * plan.width;
  for (int64_t run = channel; run * plan.inner < end; run += plan.channels) {
    const int64_t from = run * plan.inner;
    const int64_t to = (from + plan.inner < end ? from + plan.inner : end) - 1;
    const int64_t first =
        from < plan.head ? 0 : (from - plan.head) / tile_elements;
    const int64_t last = to < plan.head ? 0 : (to - plan.head) / tile_elements;
    for (int64_t tile = first; tile <= last; ++tile) {
      f(tile, run - TileBegin(plan, tile) / plan.inner);
    }
  }
}

// Up to kItems vectors on their way to a thread's registers.
template <typename Op>
struct Batch {
  typename Op::Item items[Op::kItems];
  // -1 where there is no vector. An operation that stores nothing never reads
  // them, and then they take no registers.
  int64_t offsets[Op::kItems];
  // Bit u: there is an item u.
  uint32_t present;

  static constexpr uint32_t kFull = (1U << Op::kItems) - 1;
  COHORT_DEVICE bool full() const { return present == kFull; }
  COHORT_DEVICE bool has(int u) const { return (present >> u & 1) != 0; }
};

// Starts the loads of the cursor's next vectors.
template <typename Op, typename Cursor>
COHORT_DEVICE void Fetch(const Op& op, Cursor& cursor, Batch<Op>& batch) {
  if (cursor.left() >= Op::kItems && cursor.always_whole()) {
    batch.present = Batch<Op>::kFull;
    COHORT_UNROLL
    for (int u = 0; u < Op::kItems; ++u) {
      batch.offsets[u] = cursor.Next();
      batch.items[u] = op.Load(batch.offsets[u]);
    }
    return;
  }
  batch.present = 0;
  COHORT_UNROLL
  for (int u = 0; u < Op::kItems; ++u) {
    const int64_t offset = cursor.left() > 0 ? cursor.Next() : -1;
    batch.offsets[u] = offset;
    if (offset < 0) continue;
    batch.items[u] = op.Load(offset);
    batch.present |= 1U << u;
  }
}

// Visits all vectors of the cursor. What depends on the channels is read after
// the first loads have been started, so that both wait for the memory at once.
template <typename Op, typename Cursor, int kColumns>
COHORT_DEVICE void Walk(Op& op, Cursor& cursor,
                        const int64_t (&channels)[kColumns]) {
  Batch<Op> batch;
  bool any = cursor.left() > 0;
  if (any) Fetch(op, cursor, batch);
  op.Prepare(channels);
  while (any) {
    if (batch.full()) {
      op.template Visit<true>(batch);
    } else {
      op.template Visit<false>(batch);
    }
    any = cursor.left() > 0;
    if (any) Fetch(op, cursor, batch);
  }
}

}  // namespace cohort::kernels::cuda
