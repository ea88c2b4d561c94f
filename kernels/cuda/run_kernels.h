#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/walk.h"

// The kernels of a RunPlan. Block b works on channel b / splits.
namespace cohort::kernels::cuda {

// Sums of Op over each channel.
template <typename Op>
struct RunReduce {
  static constexpr int kThreads = kRunThreads;
  static constexpr int kBlocksPerMultiprocessor = kRunBlocksPerMultiprocessor;
  using Args = typename Op::Args;
  using ThePlan = RunPlan;

  struct Shared {
    Pair tree[kThreads / 2];
    bool flag;
  };

  template <typename Place>
  static COHORT_DEVICE void Run(const Place& place, Shared& shared,
                                const Args& args, const RunPlan& plan,
                                const Exchange& exchange) {
    const int64_t channel = place.block() / plan.splits;
    const int64_t split = place.block() % plan.splits;
    const Pair mine = SumOfThread(place.thread(), args, plan, channel, split);
    Pair total = BlockSum<kThreads>(place, shared.tree, mine);
    if (plan.splits > 1) {
      Pair* parts = exchange.pairs + channel * plan.splits;
      if (place.thread() == 0) parts[split] = total;
      if (!place.LastToArrive(exchange.counters + channel, plan.splits,
                              shared.flag)) {
        return;
      }
      const int64_t count =
          (plan.splits - place.thread() + kThreads - 1) / kThreads;
      total = BlockSum<kThreads>(
          place, shared.tree,
          SumOfShared(parts + place.thread(), count, kThreads));
    }
    if (place.thread() == 0) Op::Finish(args, channel, total);
  }

 private:
  static COHORT_DEVICE Pair SumOfThread(int32_t thread, const Args& args,
                                        const RunPlan& plan, int64_t channel,
                                        int64_t split) {
    Op op(args);
    RunCursor cursor(plan, channel, split, thread, kThreads,
                     Direction::kForwards);
    const int64_t channels[1] = {channel};
    Walk(op, cursor, channels);
    ForEachEdge(plan, channel, split, thread, kThreads,
                [&](int64_t element) { op.Single(element, 0); });
    return op.sums(0);
  }
};

// Op on each element, backwards.
template <typename Op>
struct RunElementwise {
  static constexpr int kThreads = kRunThreads;
  static constexpr int kBlocksPerMultiprocessor = kRunBlocksPerMultiprocessor;
  using Args = typename Op::Args;
  using ThePlan = RunPlan;

  struct Shared {};

  template <typename Place>
  static COHORT_DEVICE void Run(const Place& place, Shared& /*shared*/,
                                const Args& args, const RunPlan& plan,
                                const Exchange& /*exchange*/) {
    const int64_t block = place.blocks() - 1 - place.block();
    const int64_t channel = block / plan.splits;
    const int64_t split = block % plan.splits;
    Op op(args);
    RunCursor cursor(plan, channel, split, place.thread(), kThreads,
                     Direction::kBackwards);
    const int64_t channels[1] = {channel};
    Walk(op, cursor, channels);
    ForEachEdge(plan, channel, split, place.thread(), kThreads,
                [&](int64_t element) { op.Single(element, 0); });
  }
};

}  // namespace cohort::kernels::cuda
