#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/walk.h"

// The kernels of a PeriodPlan. Block b works on tile b % tiles.
namespace cohort::kernels::cuda {

// Sums of Op over each channel, in five steps:
//   thread   its column, all rows of its lane
//   block    a tree over the lanes; then the columns of a run, one by one
//   splits   the last block of a tile adds what the others left
//   tiles    the last block of all adds the parts of a channel, if a channel
//            has several
// Counter 0 belongs to all tiles, counter 1 + t to tile t.
template <typename Op>
struct PeriodReduce {
  static constexpr int kThreads = kPeriodThreads;
  static constexpr int kBlocksPerMultiprocessor =
      kPeriodBlocksPerMultiprocessor;
  static constexpr int kWidth = Op::kAccess;
  using Args = typename Op::Args;
  using ThePlan = PeriodPlan;
  using HeadOp = typename Op::OneChannel;

  // Half of the threads' columns; then all columns of a tile behind a head;
  // then one pair a thread.
  static constexpr int kPairs =
      kThreads / 2 * kWidth > kThreads ? kThreads / 2 * kWidth : kThreads;
  static_assert((kTileVectorsMax + 1) * kWidth <= kPairs);
  struct Shared {
    Pair pairs[kPairs];
    bool flag;
  };

  template <typename Place>
  static COHORT_DEVICE void Run(const Place& place, Shared& shared,
                                const Args& args, const PeriodPlan& plan,
                                const Exchange& exchange) {
    const int64_t tile = place.block() % plan.tiles;
    const int64_t split = place.block() / plan.tiles;
    SumColumns(place, shared, args, plan, tile, split);
    SumLongRuns(place, shared, plan, tile);
    const int32_t slots = StoreRuns(place, shared, plan, exchange, tile, split);
    if (plan.splits == 1) {
      // Each thread reads only what it has stored itself: other blocks have no
      // part of this tile.
      place.Sync();
    } else if (!place.LastToArrive(exchange.counters + 1 + tile, plan.splits,
                                   shared.flag)) {
      return;
    }
    SumSplits(place, shared, args, plan, exchange, tile, slots);
    if (!plan.scattered) return;
    if (!place.LastToArrive(exchange.counters, plan.tiles, shared.flag)) {
      return;
    }
    SumTiles(place, args, plan, exchange);
  }

 private:
  // Leaves the sums of the tile's columns in shared.pairs, by position from
  // the beginning of the tile.
  template <typename Place>
  static COHORT_DEVICE void SumColumns(const Place& place, Shared& shared,
                                       const Args& args, const PeriodPlan& plan,
                                       int64_t tile, int64_t split) {
    PeriodCursor cursor(plan, tile, split, place.thread(),
                        Direction::kForwards);
    Pair sums[kWidth];
    SumOfThread(args, plan, split, cursor, sums);
    AddLanes(place, shared, plan, cursor, sums);
    // The head comes first in the first tile, as it does in the memory.
    const int32_t head = tile == 0 ? plan.head : 0;
    if (cursor.active() && cursor.lane() == 0) {
      COHORT_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        shared.pairs[head + cursor.place() * kWidth + j] = sums[j];
      }
    }
    if (tile == 0 && place.thread() < plan.head) {
      shared.pairs[place.thread()] =
          SumOfHead(args, plan, HeadElement(plan, tile, split, place.thread()),
                    place.thread());
    }
    place.Sync();
  }

  static COHORT_DEVICE void SumOfThread(const Args& args,
                                        const PeriodPlan& plan, int64_t split,
                                        PeriodCursor& cursor,
                                        Pair (&sums)[kWidth]) {
    COHORT_UNROLL
    for (int j = 0; j < kWidth; ++j) sums[j] = Zero();
    if (!cursor.active()) return;
    Op op(args);
    int64_t channels[kWidth];
    ChannelsAt(plan, plan.head + cursor.column(), channels);
    Walk(op, cursor, channels);
    ForEachOfRest<kWidth>(plan, split, cursor, [&](int64_t element, int j) {
      op.Single(element, j);
    });
    COHORT_UNROLL
    for (int j = 0; j < kWidth; ++j) sums[j] = op.sums(j);
  }

  // Zero where there is no element: other splits than the first.
  static COHORT_DEVICE Pair SumOfHead(const Args& args, const PeriodPlan& plan,
                                      int64_t element, int32_t position) {
    if (element < 0) return Zero();
    HeadOp op(args);
    int64_t channels[1];
    ChannelsAt(plan, position, channels);
    op.Prepare(channels);
    op.Single(element, 0);
    return op.sums(0);
  }

  // Adds all lanes to lane 0, as a tree whose upper half may be incomplete.
  template <typename Place>
  static COHORT_DEVICE void AddLanes(const Place& place, Shared& shared,
                                     const PeriodPlan& plan,
                                     const PeriodCursor& cursor,
                                     Pair (&sums)[kWidth]) {
    constexpr int kHalf = kThreads / 2;
    int32_t step = 1;
    while (step < plan.lanes) step *= 2;
    for (step /= 2; step > 0; step /= 2) {
      // By columns first: neighbouring threads, neighbouring pairs.
      const int32_t lane = cursor.lane();
      if (cursor.active() && lane >= step && lane < 2 * step) {
        const int32_t at = (lane - step) * plan.tile_vectors + cursor.place();
        COHORT_UNROLL
        for (int j = 0; j < kWidth; ++j) shared.pairs[j * kHalf + at] = sums[j];
      }
      place.Sync();
      if (cursor.active() && lane < step && lane + step < plan.lanes) {
        const int32_t at = lane * plan.tile_vectors + cursor.place();
        COHORT_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          AddTo(sums[j], shared.pairs[j * kHalf + at]);
        }
      }
      place.Sync();
    }
  }

  // The runs of a tile: first one, number, and where they lie in shared.pairs.
  struct Runs {
    COHORT_DEVICE Runs(const PeriodPlan& plan, int64_t tile)
        : inner(plan.inner),
          begin(TileBegin(plan, tile)),
          end(TileEnd(plan, tile)),
          first(begin / plan.inner),
          count(static_cast<int32_t>((end - 1) / plan.inner - first + 1)) {}

    COHORT_DEVICE int32_t Begin(int32_t slot) const {
      const int64_t at = (first + slot) * inner;
      return static_cast<int32_t>((at > begin ? at : begin) - begin);
    }
    COHORT_DEVICE int32_t End(int32_t slot) const {
      const int64_t at = (first + slot + 1) * inner;
      return static_cast<int32_t>((at < end ? at : end) - begin);
    }

    int64_t inner;
    int64_t begin;
    int64_t end;
    int64_t first;
    int32_t count;
  };

  // Lanes that add up a long run together, and what is long.
  static constexpr int32_t kRunLanes = 32;
  static constexpr int64_t kLongRun = 8;

  // Leaves in each long run's first kRunLanes columns the sums of all.
  template <typename Place>
  static COHORT_DEVICE void SumLongRuns(const Place& place, Shared& shared,
                                        const PeriodPlan& plan, int64_t tile) {
    if (plan.inner <= kLongRun) return;
    const Runs runs(plan, tile);
    const int32_t lane = place.thread() % kRunLanes;
    for (int32_t slot = place.thread() / kRunLanes; slot < runs.count;
         slot += kThreads / kRunLanes) {
      const int32_t begin = runs.Begin(slot);
      const int32_t end = runs.End(slot);
      if (begin + lane >= end) continue;
      // Only this thread has these columns, so no thread needs to wait.
      Pair sum = shared.pairs[begin + lane];
      for (int32_t i = begin + lane + kRunLanes; i < end; i += kRunLanes) {
        AddTo(sum, shared.pairs[i]);
      }
      shared.pairs[begin + lane] = sum;
    }
    place.Sync();
  }

  // Hands the sums of the tile's runs over; returns how many they are.
  template <typename Place>
  static COHORT_DEVICE int32_t StoreRuns(const Place& place, Shared& shared,
                                         const PeriodPlan& plan,
                                         const Exchange& exchange, int64_t tile,
                                         int64_t split) {
    const Runs runs(plan, tile);
    Pair* out = PartsOf(plan, exchange, tile, split);
    for (int32_t slot = place.thread(); slot < runs.count; slot += kThreads) {
      const int32_t begin = runs.Begin(slot);
      int32_t end = runs.End(slot);
      if (plan.inner > kLongRun && end > begin + kRunLanes) {
        end = begin + kRunLanes;
      }
      Pair sum = shared.pairs[begin];
      for (int32_t i = begin + 1; i < end; ++i) AddTo(sum, shared.pairs[i]);
      out[slot] = sum;
    }
    return runs.count;
  }

  static COHORT_DEVICE Pair* PartsOf(const PeriodPlan& plan,
                                     const Exchange& exchange, int64_t tile,
                                     int64_t split) {
    return exchange.pairs + (split * plan.tiles + tile) * plan.slots;
  }

  // Adds the splits of a tile: some threads for each slot, then one.
  template <typename Place>
  static COHORT_DEVICE void SumSplits(const Place& place, Shared& shared,
                                      const Args& args, const PeriodPlan& plan,
                                      const Exchange& exchange, int64_t tile,
                                      int32_t slots) {
    const int32_t thread = place.thread();
    const int64_t stride = plan.tiles * plan.slots;
    const Pair* parts = PartsOf(plan, exchange, tile, 0);
    const int64_t room = slots < kThreads ? kThreads / slots : 1;
    const auto groups =
        static_cast<int32_t>(room < plan.splits ? room : plan.splits);
    if (groups == 1) {
      for (int32_t slot = thread; slot < slots; slot += kThreads) {
        const Pair sum = SumOfShared(parts + slot, plan.splits, stride);
        Deliver(args, plan, exchange, tile, slot, sum);
      }
      return;
    }
    const int32_t group = thread / slots;
    const int32_t slot = thread % slots;
    if (group < groups) {
      const int64_t count = (plan.splits - group + groups - 1) / groups;
      shared.pairs[thread] =
          SumOfShared(parts + group * stride + slot, count, groups * stride);
    }
    place.Sync();
    if (group == 0) {
      Pair sum = shared.pairs[slot];
      for (int32_t g = 1; g < groups; ++g) {
        AddTo(sum, shared.pairs[g * slots + slot]);
      }
      Deliver(args, plan, exchange, tile, slot, sum);
    }
  }

  // A tile's total of a run: it is the channel's, or waits for other tiles.
  static COHORT_DEVICE void Deliver(const Args& args, const PeriodPlan& plan,
                                    const Exchange& exchange, int64_t tile,
                                    int32_t slot, const Pair& sum) {
    if (plan.scattered) {
      PartsOf(plan, exchange, tile, plan.splits)[slot] = sum;
    } else {
      Op::Finish(args, TileBegin(plan, tile) / plan.inner + slot, sum);
    }
  }

  template <typename Place>
  static COHORT_DEVICE void SumTiles(const Place& place, const Args& args,
                                     const PeriodPlan& plan,
                                     const Exchange& exchange) {
    for (int64_t channel = place.thread(); channel < plan.channels;
         channel += kThreads) {
      Pair sum = Zero();
      ForEachPart(plan, channel, [&](int64_t tile, int64_t slot) {
        AddTo(sum,
              LoadShared(PartsOf(plan, exchange, tile, plan.splits) + slot));
      });
      Op::Finish(args, channel, sum);
    }
  }
};

// Op on each element, backwards.
template <typename Op>
struct PeriodElementwise {
  static constexpr int kThreads = kPeriodThreads;
  static constexpr int kBlocksPerMultiprocessor =
      kPeriodBlocksPerMultiprocessor;
  static constexpr int kWidth = Op::kAccess;
  using Args = typename Op::Args;
  using ThePlan = PeriodPlan;
  using HeadOp = typename Op::OneChannel;

  struct Shared {};

  template <typename Place>
  static COHORT_DEVICE void Run(const Place& place, Shared& /*shared*/,
                                const Args& args, const PeriodPlan& plan,
                                const Exchange& /*exchange*/) {
    const int64_t block = place.blocks() - 1 - place.block();
    const int64_t tile = block % plan.tiles;
    const int64_t split = block / plan.tiles;
    PeriodCursor cursor(plan, tile, split, place.thread(),
                        Direction::kBackwards);
    if (cursor.active()) Columns(args, plan, split, cursor);
    const int64_t element = HeadElement(plan, tile, split, place.thread());
    if (element >= 0) Head(args, plan, element);
  }

 private:
  static COHORT_DEVICE void Columns(const Args& args, const PeriodPlan& plan,
                                    int64_t split, PeriodCursor& cursor) {
    Op op(args);
    int64_t channels[kWidth];
    ChannelsAt(plan, plan.head + cursor.column(), channels);
    Walk(op, cursor, channels);
    ForEachOfRest<kWidth>(plan, split, cursor, [&](int64_t element, int j) {
      op.Single(element, j);
    });
  }

  static COHORT_DEVICE void Head(const Args& args, const PeriodPlan& plan,
                                 int64_t element) {
    HeadOp op(args);
    int64_t channels[1];
    ChannelsAt(plan, element, channels);
    op.Prepare(channels);
    op.Single(element, 0);
  }
};

}  // namespace cohort::kernels::cuda
