#include "kernels/cuda/plan.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/walk.h"
#include "tests/gpu/shapes.h"

namespace cohort::kernels::cuda {
namespace {

constexpr int32_t kMultiprocessors = 132;

// Adds 1 to each element of a whole vector from `offset` on.
void Count(std::vector<int>& visits, int64_t offset, int32_t width) {
  for (int32_t j = 0; j < width; ++j) ++visits[offset + j];
}

void VisitRuns(const RunPlan& plan, Direction direction,
               std::vector<int>& visits) {
  for (int64_t block = 0; block < plan.channels * plan.splits; ++block) {
    const int64_t channel = block / plan.splits;
    const int64_t split = block % plan.splits;
    for (int32_t thread = 0; thread < kRunThreads; ++thread) {
      RunCursor cursor(plan, channel, split, thread, kRunThreads, direction);
      while (cursor.left() > 0) {
        const int64_t offset = cursor.Next();
        if (offset < 0) continue;
        ASSERT_EQ((offset + plan.shift) % plan.width, 0);
        // A vector lies in one run, the one of its channel.
        ASSERT_EQ(offset / plan.inner, (offset + plan.width - 1) / plan.inner);
        ASSERT_EQ(offset / plan.inner % plan.channels, channel);
        Count(visits, offset, plan.width);
      }
      ForEachEdge(plan, channel, split, thread, kRunThreads,
                  [&](int64_t element) {
                    ASSERT_EQ(element / plan.inner % plan.channels, channel);
                    ++visits[element];
                  });
    }
  }
}

void VisitPeriods(const PeriodPlan& plan, int32_t shift, Direction direction,
                  std::vector<int>& visits) {
  for (int64_t block = 0; block < plan.tiles * plan.splits; ++block) {
    const int64_t tile = block % plan.tiles;
    const int64_t split = block / plan.tiles;
    for (int32_t thread = 0; thread < kPeriodThreads; ++thread) {
      PeriodCursor cursor(plan, tile, split, thread, direction);
      while (cursor.left() > 0) {
        const int64_t offset = cursor.Next();
        ASSERT_EQ((offset + shift) % plan.width, 0);
        Count(visits, offset, plan.width);
      }
      const auto rest = [&](int64_t element, int) { ++visits[element]; };
      if (plan.width == 8) ForEachOfRest<8>(plan, split, cursor, rest);
      if (plan.width == 4) ForEachOfRest<4>(plan, split, cursor, rest);
      if (plan.width == 1) ForEachOfRest<1>(plan, split, cursor, rest);
      const int64_t head = HeadElement(plan, tile, split, thread);
      if (head >= 0) ++visits[head];
    }
  }
}

void ExpectEachElementOnce(const Layout& layout, const Access& access) {
  SCOPED_TRACE(absl::StrCat(Describe(layout), ", width ", access.width));
  const Plan plan = MakePlan(layout.shape, access, kMultiprocessors);
  for (Direction direction : {Direction::kForwards, Direction::kBackwards}) {
    std::vector<int> visits(Elements(layout.shape));
    if (plan.runs) {
      VisitRuns(plan.run, direction, visits);
    } else {
      VisitPeriods(plan.period, access.shift, direction, visits);
    }
    for (size_t i = 0; i < visits.size(); ++i) {
      ASSERT_EQ(visits[i], 1) << "element " << i;
    }
  }
}

TEST(PlanTest, EachElementIsVisitedOnceInEveryLayout) {
  for (const Layout& layout : Layouts(60000)) {
    ExpectEachElementOnce(layout, {});
    for (int32_t width : {4, 8}) {
      for (int32_t shift : {0, 1, width - 1}) {
        ExpectEachElementOnce(layout, {width, shift});
      }
    }
  }
}

// The last block adds up every run of every tile once, for its channel.
TEST(PlanTest, PartsOfTheChannelsAreTheRunsOfTheTiles) {
  for (const Layout& layout : Layouts(120000)) {
    const Plan plan = MakePlan(layout.shape, {8, 3}, kMultiprocessors);
    if (plan.runs) continue;
    const PeriodPlan& period = plan.period;
    std::map<std::pair<int64_t, int64_t>, int64_t> channel_of;
    for (int64_t tile = 0; tile < period.tiles; ++tile) {
      const int64_t begin = TileBegin(period, tile);
      for (int64_t at = begin; at < TileEnd(period, tile); ++at) {
        const int64_t run = at / period.inner;
        channel_of[{tile, run - begin / period.inner}] = run % period.channels;
      }
    }
    size_t parts = 0;
    for (int64_t c = 0; c < period.channels; ++c) {
      ForEachPart(period, c, [&](int64_t tile, int64_t slot) {
        ++parts;
        ASSERT_LT(slot, period.slots) << Describe(layout);
        const auto found = channel_of.find({tile, slot});
        ASSERT_TRUE(found != channel_of.end()) << Describe(layout);
        ASSERT_EQ(found->second, c) << Describe(layout);
      });
    }
    EXPECT_EQ(parts, channel_of.size()) << Describe(layout);
  }
}

TEST(PlanTest, ChannelsOfAColumnAreThoseOfItsElements) {
  const PeriodPlan plan =
      MakePlan({.outer = 9, .channels = 5, .inner = 3}, {8, 3}, 4).period;
  for (int64_t position = 0; position < plan.row_elements; ++position) {
    int64_t channels[8];
    ChannelsAt(plan, position, channels);
    for (int64_t j = 0; j < 8; ++j) {
      EXPECT_EQ(channels[j], (position + j) / 3 % 5);
    }
  }
}

// 2^33 elements: 32 bits cannot hold the last thread's offsets.
TEST(PlanTest, OffsetsAbove2To31AreRight) {
  const BatchShape runs = {
      .outer = 1 << 10, .channels = 1 << 11, .inner = 1 << 12};
  const RunPlan run = MakePlan(runs, {8, 0}, kMultiprocessors).run;
  RunCursor last(run, run.channels - 1, run.splits - 1, kRunThreads - 1,
                 kRunThreads, Direction::kForwards);
  int64_t offset = 0;
  while (last.left() > 0) offset = last.Next();
  EXPECT_EQ(offset, (int64_t{1} << 33) - 8);

  const BatchShape rows = {
      .outer = int64_t{1} << 27, .channels = 1 << 6, .inner = 1};
  const PeriodPlan period = MakePlan(rows, {8, 0}, kMultiprocessors).period;
  int64_t highest = 0;
  for (int32_t thread = 0; thread < kPeriodThreads; ++thread) {
    PeriodCursor cursor(period, period.tiles - 1, period.splits - 1, thread,
                        Direction::kBackwards);
    if (cursor.left() > 0) highest = std::max(highest, cursor.Next());
  }
  EXPECT_EQ(highest, (int64_t{1} << 33) - 8);
}

// 64 MiB and more: at least nine tenths of the last wave of blocks are busy.
TEST(PlanTest, LargeTensorsFillAGpu) {
  for (int64_t channels : {3, 48, 64, 65, 100, 256, 2048, 2049}) {
    for (int64_t side : {7, 14, 28, 56, 112}) {
      const int64_t inner = side * side;
      const int64_t images = (int64_t{1} << 25) / (channels * inner) + 1;
      for (const BatchShape& shape :
           {BatchShape{images, channels, inner},
            BatchShape{images * inner, channels, 1}}) {
        const Plan plan = MakePlan(shape, {8, 0}, kMultiprocessors);
        const int64_t resident = int64_t{kMultiprocessors} *
                                 (plan.runs ? kRunBlocksPerMultiprocessor
                                            : kPeriodBlocksPerMultiprocessor);
        const int64_t waves = (plan.blocks() + resident - 1) / resident;
        const double share = static_cast<double>(plan.blocks()) /
                             static_cast<double>(waves * resident);
        EXPECT_GE(share, 0.9) << kernels::Describe(shape);
      }
    }
  }
}

TEST(PlanTest, PartialSumsAreSmallBesideTheTensor) {
  for (const Layout& layout : Layouts(int64_t{1} << 25)) {
    if (Elements(layout.shape) < (1 << 22)) continue;
    const int64_t tensor_bytes = Elements(layout.shape) * 2;
    EXPECT_LT(WorkspaceBytes(layout.shape, 2, kMultiprocessors),
              tensor_bytes / 8 + kCounterBytes)
        << Describe(layout);
  }
}

TEST(PlanTest, WorkspaceServesEveryAlignment) {
  for (const Layout& layout : Layouts(120000)) {
    const int64_t bytes = WorkspaceBytes(layout.shape, 4, 7);
    for (const Access& access :
         {Access{}, Access{4, 0}, Access{4, 1}, Access{4, 2}, Access{4, 3}}) {
      const Plan plan = MakePlan(layout.shape, access, 7);
      EXPECT_LE(kCounterBytes + PairsOf(plan) * 16, bytes);
    }
  }
}

TEST(PlanTest, AccessIsWideWhereAllTensorsLieAlike) {
  alignas(16) const char memory[64] = {};
  const void* alike[] = {memory + 4, nullptr, memory + 20};
  EXPECT_EQ(WidestAccess(alike, 3, 2).width, 8);
  EXPECT_EQ(WidestAccess(alike, 3, 2).shift, 2);
  const void* unlike[] = {memory, memory + 2};
  EXPECT_EQ(WidestAccess(unlike, 2, 2).width, 1);
  EXPECT_EQ(WidestAccess(unlike, 2, 2).shift, 0);
}

TEST(PlanTest, PiecesFillTheLastWave) {
  EXPECT_EQ(ChoosePieces(64, 264, 1000), 4);  // 256 of 264
  EXPECT_EQ(ChoosePieces(64, 264, 3), 3);     // No more than permitted.
  EXPECT_EQ(ChoosePieces(264, 264, 1000), 1);
  EXPECT_EQ(ChoosePieces(1, 132, 1000), 132);
  EXPECT_EQ(ChoosePieces(100, 264, 1000), 13);  // 1300 of 1320.
  EXPECT_EQ(ChoosePieces(1 << 20, 264, 1000), 1);
}

// If there are not enough counters, tiles are not cut, so that blocks have
// nothing to count.
TEST(PlanTest, TilesThatAreCutHaveACounter) {
  for (int64_t channels : {1000, 8191, 8192, 100000}) {
    for (int64_t inner : {1, 600}) {
      const Plan plan = MakePlan({1 << 14, channels, inner}, {8, 0}, 2000);
      const int64_t units = plan.runs ? plan.run.channels : plan.period.tiles;
      const int64_t splits = plan.runs ? plan.run.splits : plan.period.splits;
      EXPECT_TRUE(splits == 1 || units + 1 <= kCounters);
    }
  }
}

}  // namespace
}  // namespace cohort::kernels::cuda
