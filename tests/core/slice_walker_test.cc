#include "server/partitions/slice_walker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "common/bfloat16.h"
#include "tests/fakes/float_ropes.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Floats = std::vector<float>;
using Range = std::pair<int64_t, int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A job with these slices and gradients; weights are never read.
FoldJob JobOf(const std::vector<int64_t>& slices,
              std::vector<ByteRope> gradients) {
  FoldJob job;
  int64_t elements = 0;
  for (const int64_t count : slices) {
    job.slices.push_back({.count = count});
    elements += count;
  }
  job.weights = std::make_shared<FloatBuffer>(elements);
  for (ByteRope& gradient : gradients) {
    job.contributions.push_back(
        {.rank = Rank(static_cast<int32_t>(job.contributions.size())),
         .gradient = std::move(gradient)});
  }
  return job;
}

SharedRuns Frozen(std::vector<ElementRun> runs) {
  return std::make_shared<std::vector<ElementRun>>(std::move(runs));
}

struct Walk {
  std::vector<SliceBlock> blocks;
  // Offset and count.
  std::vector<Range> runs;
  // By contributor: put together again from the runs.
  std::vector<Floats> gradients;
};

Walk WalkAll(const FoldJob& job, int64_t block_elements) {
  Walk walk;
  walk.gradients.resize(job.contributions.size());
  SliceWalker walker(job, block_elements);
  while (walker.Next()) {
    walk.blocks.push_back(walker.block());
    walker.ForEachRun([&](int64_t begin, int64_t count,
                          absl::Span<const std::byte* const> gradients) {
      walk.runs.emplace_back(begin, count);
      for (size_t k = 0; k < gradients.size(); ++k) {
        Floats run(static_cast<size_t>(count));
        std::memcpy(run.data(), gradients[k], run.size() * sizeof(float));
        Floats& all = walk.gradients[k];
        all.insert(all.end(), run.begin(), run.end());
      }
      return true;
    });
  }
  return walk;
}

TEST(SliceWalkerTest, BlocksAreCountedFromTheBeginningOfTheirSlice) {
  const Walk walk = WalkAll(JobOf({5, 2}, {}), 2);
  EXPECT_THAT(walk.blocks,
              ElementsAre(SliceBlock{0, 0, 2}, SliceBlock{0, 2, 4},
                          SliceBlock{0, 4, 5}, SliceBlock{1, 5, 7}));
}

TEST(SliceWalkerTest, ASliceWithoutElementsHasNoBlock) {
  const Walk walk = WalkAll(JobOf({0, 1, 0, 0, 2, 0}, {}), 2);
  EXPECT_THAT(walk.blocks,
              ElementsAre(SliceBlock{1, 0, 1}, SliceBlock{4, 1, 3}));
  EXPECT_THAT(WalkAll(JobOf({}, {}), 2).blocks, IsEmpty());
}

TEST(SliceWalkerTest, TheStepIsThatOfTheSlice) {
  FoldJob job = JobOf({1, 1}, {});
  job.slices[1].skip = true;
  SliceWalker walker(job, 8);
  ASSERT_TRUE(walker.Next());
  EXPECT_FALSE(walker.step().skip);
  ASSERT_TRUE(walker.Next());
  EXPECT_TRUE(walker.step().skip);
  EXPECT_FALSE(walker.Next());
}

TEST(SliceWalkerTest, AWholeGradientIsOneRunABlock) {
  const Walk walk = WalkAll(JobOf({3, 2}, {CutAt({1, 2, 3, 4, 5}, {})}), 2);
  EXPECT_THAT(walk.runs, ElementsAre(Range{0, 2}, Range{2, 1}, Range{3, 2}));
  EXPECT_THAT(walk.gradients[0], ElementsAre(1, 2, 3, 4, 5));
}

TEST(SliceWalkerTest, RunsEndWhereAPieceOfAnyGradientEnds) {
  // Cut after one float in the first, after three in the second.
  const Walk walk = WalkAll(
      JobOf({4}, {CutAt({1, 2, 3, 4}, {4}), CutAt({5, 6, 7, 8}, {12})}), 8);
  EXPECT_THAT(walk.runs, ElementsAre(Range{0, 1}, Range{1, 2}, Range{3, 1}));
  EXPECT_THAT(walk.gradients[0], ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(walk.gradients[1], ElementsAre(5, 6, 7, 8));
}

TEST(SliceWalkerTest, ACutFloatIsARunOfItsOwn) {
  // Byte 6 is inside the second float.
  const Walk walk = WalkAll(JobOf({4}, {CutAt({1, 2, 3, 4}, {6})}), 8);
  EXPECT_THAT(walk.runs, ElementsAre(Range{0, 1}, Range{1, 1}, Range{2, 2}));
  EXPECT_THAT(walk.gradients[0], ElementsAre(1, 2, 3, 4));
}

TEST(SliceWalkerTest, AFloatMayBeCutIntoItsBytes) {
  const Walk walk =
      WalkAll(JobOf({2}, {CutAt({1, 2}, {1, 2, 3, 4, 5, 6, 7})}), 8);
  EXPECT_THAT(walk.gradients[0], ElementsAre(1, 2));
}

TEST(SliceWalkerTest, EveryPairOfCutsGivesTheSameFloats) {
  const Floats a = {1, 2, 3, 4};
  const Floats b = {-1, -2, -3, -4};
  for (size_t cut_a = 1; cut_a < 16; ++cut_a) {
    for (size_t cut_b = 1; cut_b < 16; ++cut_b) {
      const Walk walk =
          WalkAll(JobOf({3, 1}, {CutAt(a, {cut_a}), CutAt(b, {cut_b})}), 2);
      ASSERT_EQ(walk.gradients[0], a) << cut_a << " and " << cut_b;
      ASSERT_EQ(walk.gradients[1], b) << cut_a << " and " << cut_b;
    }
  }
}

// 4, 5, ... in bfloat16, which has them all up to 256.
ByteRope CountedInBFloat16(int64_t count, const std::vector<size_t>& cuts) {
  Floats values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(4 + i % 200));
  }
  std::vector<float> halves(values.size() / 2);
  RoundToBFloat16(reinterpret_cast<const std::byte*>(values.data()), count,
                  reinterpret_cast<std::byte*>(halves.data()));
  return CutAt(halves, cuts);
}

TEST(SliceWalkerTest, GradientsInBFloat16AreSeenAsFloats) {
  for (size_t cut_a = 1; cut_a < 16; ++cut_a) {
    for (size_t cut_b = 1; cut_b < 8; ++cut_b) {
      FoldJob job = JobOf({3, 1}, {CutAt({1, 2, 3, 4}, {cut_a}),
                                   CountedInBFloat16(4, {cut_b})});
      job.contributions[1].type = ElementType::kBFloat16;
      const Walk walk = WalkAll(job, 2);
      ASSERT_EQ(walk.gradients[0], (Floats{1, 2, 3, 4}));
      ASSERT_EQ(walk.gradients[1], (Floats{4, 5, 6, 7}))
          << cut_a << " and " << cut_b;
    }
  }
}

TEST(SliceWalkerTest, RunsOfBFloat16StayInTheCache) {
  FoldJob job = JobOf({2500, 100}, {CountedInBFloat16(2600, {})});
  job.contributions[0].type = ElementType::kBFloat16;
  const Walk walk = WalkAll(job, 2600);
  EXPECT_THAT(walk.runs, ElementsAre(Range{0, 1024}, Range{1024, 1024},
                                     Range{2048, 452}, Range{2500, 100}));
  for (size_t i = 0; i < 2600; ++i) {
    ASSERT_EQ(walk.gradients[0][i], static_cast<float>(4 + i % 200)) << i;
  }
}

TEST(SliceWalkerTest, ABlockThatIsNotReadIsPassedOver) {
  const FoldJob job = JobOf({2, 1}, {CutAt({1, 2, 3}, {3, 6})});
  SliceWalker walker(job, 8);
  ASSERT_TRUE(walker.Next());
  ASSERT_TRUE(walker.Next());
  float value = 0;
  walker.ForEachRun([&](int64_t begin, int64_t count,
                        absl::Span<const std::byte* const> gradients) {
    EXPECT_EQ(begin, 2);
    EXPECT_EQ(count, 1);
    std::memcpy(&value, gradients[0], sizeof(value));
    return true;
  });
  EXPECT_EQ(value, 3);
}

TEST(SliceWalkerTest, TheBodyEndsTheRuns) {
  const FoldJob job = JobOf({3}, {CutAt({1, 2, 3}, {4, 8})});
  SliceWalker walker(job, 8);
  ASSERT_TRUE(walker.Next());
  int32_t runs = 0;
  walker.ForEachRun([&](int64_t, int64_t, auto) { return ++runs < 2; });
  EXPECT_EQ(runs, 2);
}

TEST(SliceWalkerTest, FrozenElementsAreThoseOfTheBlock) {
  FoldJob job = JobOf({10}, {});
  job.frozen = Frozen({{.offset = 1, .count = 1}, {.offset = 3, .count = 5}});
  SliceWalker walker(job, 4);
  std::vector<std::vector<Range>> frozen;
  while (walker.Next()) {
    frozen.emplace_back();
    walker.ForEachFrozen([&](int64_t begin, int64_t count) {
      frozen.back().emplace_back(begin, count);
    });
  }
  EXPECT_THAT(frozen, ElementsAre(ElementsAre(Range{1, 1}, Range{3, 1}),
                                  ElementsAre(Range{4, 4}), IsEmpty()));
}

TEST(SliceWalkerTest, TheLowestRankWithANonfiniteValueIsNamed) {
  // Rank 2 comes first in memory, rank 1 in order.
  for (const std::vector<size_t>& cuts :
       std::vector<std::vector<size_t>>{{}, {4}, {2, 7}}) {
    const FoldJob job =
        JobOf({3}, {CutAt({1, 2, 3}, cuts), CutAt({1, 2, kNan}, {}),
                    CutAt({kNan, 2, 3}, cuts)});
    SliceWalker walker(job, 8);
    ASSERT_TRUE(walker.Next());
    EXPECT_EQ(walker.NonfiniteRank(), Rank(1));
  }
}

TEST(SliceWalkerTest, ANonfiniteValueOfAnotherBlockOrAFrozenElementIsIgnored) {
  FoldJob job = JobOf({4}, {CutAt({1, kNan, 3, kNan}, {6})});
  job.frozen = Frozen({{.offset = 1, .count = 1}});
  SliceWalker walker(job, 2);
  ASSERT_TRUE(walker.Next());
  EXPECT_EQ(walker.NonfiniteRank(), std::nullopt);
  ASSERT_TRUE(walker.Next());
  EXPECT_EQ(walker.NonfiniteRank(), Rank(0));
}

TEST(SliceWalkerDeathTest, RefusesWhatDoesNotMakeUpThePartition) {
  FoldJob job = JobOf({3}, {CutAt({1, 2}, {})});
  EXPECT_DEATH(SliceWalker(job, 8), "got 8 bytes, want 12");
  job.contributions[0].type = ElementType::kBFloat16;
  EXPECT_DEATH(SliceWalker(job, 8), "got 8 bytes, want 6");
  job.contributions.clear();
  job.slices[0].count = 2;
  EXPECT_DEATH(SliceWalker(job, 8), "got 2 elements, want 3");
}

}  // namespace
}  // namespace cohort
