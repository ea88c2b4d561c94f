#include "server/partitions/fold_job.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "common/bfloat16.h"
#include "common/permutation.h"
#include "kernels/backend.h"
#include "tests/core/float_values.h"
#include "tests/fakes/float_ropes.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort {
namespace {

using Floats = std::vector<float>;

FoldResult Fold(const FoldJob& job) {
  FloatBufferPool pool;
  return RunFold(job, kernels::ReferenceBackend(), pool);
}

constexpr SgdNumbers kPlain{.scale = 0.5, .rate = 0.25};

TEST(FoldJobTest, EachSliceIsUpdatedByItsOwnStep) {
  SgdNumbers decayed = kPlain;
  decayed.decay = 1;
  const FoldJob job{
      .transaction = 7,
      .partition = 3,
      .contributions = {{.rank = Rank(0), .gradient = RopeOver({2, 4, 6})},
                        {.rank = Rank(1), .gradient = RopeOver({2, 0, 2})}},
      .slices = {{.count = 1, .rule = PlainStep(kPlain)},
                 {.count = 2, .rule = PlainStep(decayed)}},
      .weights = BufferOf({1, 2, 4})};
  const FoldResult result = Fold(job);
  EXPECT_EQ(result.transaction, 7);
  EXPECT_EQ(result.partition, 3);
  // Gradients 2, 2 + 2, 4 + 4 after scale and decay.
  EXPECT_EQ(ValuesOf(result.weights), (Floats{0.5, 1, 2}));
  EXPECT_EQ(result.slots.velocity, nullptr);
  EXPECT_FALSE(result.nonfinite.has_value());
  EXPECT_EQ(ValuesOf(job.weights), (Floats{1, 2, 4}));
}

TEST(FoldJobTest, MomentumMovesTheVelocity) {
  SgdNumbers numbers = kPlain;
  numbers.momentum = 0.5;
  const FoldResult result =
      Fold({.contributions = {{.rank = Rank(0), .gradient = RopeOver({4})}},
            .slices = {{.count = 1, .rule = StepOf(numbers)}},
            .weights = BufferOf({1}),
            .slots = {.velocity = BufferOf({2})}});
  // v = 0.5 * 2 + 2, w = 1 - 0.25 * 3.
  EXPECT_EQ(ValuesOf(result.slots.velocity), Floats{3});
  EXPECT_EQ(ValuesOf(result.weights), Floats{0.25});
}

// --momentum may become 0 during a run, and more again later.
TEST(FoldJobTest, AMomentumOfZeroLeavesTheGradientAsVelocity) {
  for (const kernels::Backend* backend :
       {&kernels::ReferenceBackend(), &kernels::CpuBackend()}) {
    for (bool frozen : {false, true}) {
      FoldJob job{
          .contributions = {{.rank = Rank(0), .gradient = RopeOver({4, 8})}},
          .slices = {{.count = 2, .rule = StepOf(kPlain)}},
          .weights = BufferOf({1, 1}),
          .slots = {.velocity = BufferOf({2, 2})}};
      if (frozen) {
        job.frozen = std::make_shared<std::vector<ElementRun>>(
            std::vector<ElementRun>{{.offset = 1, .count = 1}});
      }
      FloatBufferPool pool;
      const FoldResult result = RunFold(job, *backend, pool);
      const Floats velocity = ValuesOf(result.slots.velocity);
      EXPECT_EQ(velocity, (Floats{2, frozen ? 2.0f : 4.0f}));
      EXPECT_EQ(ValuesOf(result.weights), (Floats{0.5, frozen ? 1.0f : 0}));
    }
  }
}

TEST(FoldJobTest, ASkippedSliceKeepsWeightsAndVelocityToTheBit) {
  SgdNumbers numbers = kPlain;
  numbers.momentum = 0.5;
  numbers.decay = 1;
  const kernels::RuleStep step = StepOf(numbers);
  const FoldResult result =
      Fold({.contributions = {{.rank = Rank(0), .gradient = RopeOver({0, 4})}},
            .slices = {{.count = 1, .rule = step, .skip = true},
                       {.count = 1, .rule = step}},
            .weights = BufferOf({0.1f, 0}),
            .slots = {.velocity = BufferOf({0.3f, 0})}});
  EXPECT_EQ(ValuesOf(result.weights)[0], 0.1f);
  EXPECT_EQ(ValuesOf(result.slots.velocity)[0], 0.3f);
  EXPECT_EQ(ValuesOf(result.weights)[1], -0.5f);
}

TEST(FoldJobTest, CutsInOddPlacesDoNotShow) {
  SplitMix64 random(5);
  const Floats weights = DrawFloats(random, 101, 0.5);
  const Floats velocity = DrawFloats(random, 101, 0.5);
  const Floats first = DrawFloats(random, 101, 0.5);
  const Floats second = DrawFloats(random, 101, 0.5);
  const kernels::RuleStep step =
      StepOf({.scale = 0.7, .rate = 0.3, .decay = 0.01, .momentum = 0.9},
             OptimizerKind::kNesterov);
  FoldJob job{
      .contributions = {{.rank = Rank(0), .gradient = RopeOver(first)},
                        {.rank = Rank(1), .gradient = RopeOver(second)}},
      .slices = {{.count = 13, .rule = step},
                 {.count = 1, .rule = step, .skip = true},
                 {.count = 87, .rule = step}},
      .weights = BufferOf(weights),
      .slots = {.velocity = BufferOf(velocity)}};
  FloatBufferPool pool;
  for (const kernels::Backend* backend :
       {&kernels::ReferenceBackend(), &kernels::CpuBackend()}) {
    const FoldResult whole = RunFold(job, *backend, pool);
    for (size_t longest : {1u, 3u, 7u, 50u}) {
      FoldJob cut = job;
      cut.contributions[0].gradient = CutRope(first, longest);
      cut.contributions[1].gradient = CutRope(second, longest + 2);
      const FoldResult result = RunFold(cut, *backend, pool);
      EXPECT_EQ(result.weights->Checksum(), whole.weights->Checksum())
          << backend->name() << ", pieces of up to " << longest;
      EXPECT_EQ(ValuesOf(result.slots.velocity),
                ValuesOf(whole.slots.velocity));
    }
  }
}

// `values`, rounded to bfloat16, and the rounded values.
ByteRope RopeOfBFloat16(Floats& values) {
  std::vector<std::byte> bytes(values.size() * 2);
  const auto count = static_cast<int64_t>(values.size());
  RoundToBFloat16(reinterpret_cast<const std::byte*>(values.data()), count,
                  bytes.data());
  ExpandBFloat16(bytes.data(), count, values.data());
  return ByteRope::Copy(bytes);
}

// With any rule, backend and cut, and float32 from any rank, the bits are those
// of the same numbers in float32.
TEST(FoldJobTest, BFloat16GivesTheBitsOfItsValues) {
  constexpr int32_t kRanks = 19;
  constexpr int64_t kElements = 3000;
  SplitMix64 random(8);
  const auto draw = [&random] { return DrawFloats(random, kElements, 0.5); };
  const kernels::RuleStep step =
      StepOf({.scale = 0.7, .rate = 0.3, .decay = 0.01, .momentum = 0.9});
  FoldJob floats{.slices = {{.count = 13, .rule = step},
                            {.count = kElements - 13, .rule = step}},
                 .weights = BufferOf(draw()),
                 .slots = {.velocity = BufferOf(draw())}};
  FoldJob halves = floats;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    FoldContribution half{.rank = Rank(rank)};
    Floats values = draw();
    // Every third rank's client sends float32.
    if (rank % 3 == 2) {
      half.gradient = CutRope(values, 5000);
    } else {
      half.gradient = RopeOfBFloat16(values);
      half.type = ElementType::kBFloat16;
    }
    halves.contributions.push_back(half);
    floats.contributions.push_back(
        {.rank = Rank(rank), .gradient = RopeOver(values)});
  }
  EXPECT_EQ(GradientBytes(halves), kElements * (13 * 2 + 6 * 4));
  FloatBufferPool pool;
  for (const kernels::Backend* backend :
       {&kernels::ReferenceBackend(), &kernels::CpuBackend()}) {
    for (const FoldPass pass : {FoldPass::kWhole, FoldPass::kGradient}) {
      floats.pass = pass;
      halves.pass = pass;
      const FoldResult want = RunFold(floats, *backend, pool);
      const FoldResult got = RunFold(halves, *backend, pool);
      if (pass == FoldPass::kGradient) {
        EXPECT_EQ(ValuesOf(got.gradient), ValuesOf(want.gradient));
        continue;
      }
      EXPECT_EQ(got.weights->Checksum(), want.weights->Checksum())
          << backend->name();
      EXPECT_EQ(ValuesOf(got.slots.velocity), ValuesOf(want.slots.velocity));
    }
  }
}

// Pieces as HTTP/2 delivers them: frames of 64 KiB, after a shorter piece whose
// odd length makes every boundary cut a float. The reference is one loop in
// float64.
TEST(FoldJobTest, PiecesOfTheNetworkGiveTheNumbersOfFloat64) {
  constexpr int64_t kElements = 50'000;
  SplitMix64 random(6);
  const auto draw = [&random] { return DrawFloats(random, kElements, 0.5); };
  const Floats weights = draw();
  const Floats velocity = draw();
  FoldJob job{.gradient_scale = 0.5f,
              .slices = {{.count = kElements,
                          .rule = StepOf({.rate = 0.25, .momentum = 0.9})}},
              .weights = BufferOf(weights),
              .slots = {.velocity = BufferOf(velocity)}};
  std::vector<double> sum(kElements, 0.0);
  for (int32_t rank = 0; rank < 3; ++rank) {
    const Floats gradient = draw();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    constexpr size_t kFrame = 65'536;
    job.contributions.push_back(
        {.rank = Rank(rank),
         .gradient =
             CutAt(gradient, {32'259, 32'259 + kFrame, 32'259 + 2 * kFrame})});
  }
  FloatBufferPool pool;
  const FoldResult result = RunFold(job, kernels::CpuBackend(), pool);
  const Floats got_velocity = ValuesOf(result.slots.velocity);
  const Floats got_weights = ValuesOf(result.weights);
  for (size_t i = 0; i < sum.size(); ++i) {
    const double v = 0.9 * velocity[i] + 0.5 * sum[i];
    // Five roundings of values below 2 with a relative error of 2^-24 each.
    ASSERT_NEAR(got_velocity[i], v, 6e-7) << i;
    ASSERT_NEAR(got_weights[i], weights[i] - 0.25 * v, 6e-7) << i;
  }
}

TEST(FoldJobTest, TheRankNamedDoesNotDependOnCuts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  FoldJob job{
      .contributions = {{.rank = Rank(0), .gradient = RopeOver({1, nan})},
                        {.rank = Rank(1), .gradient = RopeOver({nan, 2})}},
      .slices = {{.count = 2, .rule = PlainStep(kPlain)}},
      .weights = BufferOf({0, 0})};
  EXPECT_EQ(Fold(job).nonfinite->rank, Rank(0));
  job.contributions[0].gradient = CutRope({1, nan}, 4);
  EXPECT_EQ(Fold(job).nonfinite->rank, Rank(0));
  // Finite, but not in bfloat16.
  Floats rounded = {1, std::numeric_limits<float>::max()};
  job.contributions[0] = {.rank = Rank(0),
                          .gradient = RopeOfBFloat16(rounded),
                          .type = ElementType::kBFloat16};
  EXPECT_EQ(Fold(job).nonfinite->rank, Rank(0));
}

TEST(FoldJobTest, NonfiniteNamesTheRankAndTheSlice) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const FoldResult result = Fold(
      {.partition = 4,
       .contributions = {{.rank = Rank(2), .gradient = RopeOver({1, 2, 3})},
                         {.rank = Rank(5), .gradient = RopeOver({1, 2, nan})}},
       .slices = {{.count = 2, .rule = PlainStep(kPlain)},
                  {.count = 1, .rule = PlainStep(kPlain)}},
       .weights = BufferOf({0, 0, 0})});
  ASSERT_TRUE(result.nonfinite.has_value());
  EXPECT_EQ(result.nonfinite->rank, Rank(5));
  EXPECT_EQ(result.nonfinite->partition, 4);
  EXPECT_EQ(result.nonfinite->slice, 1);
  EXPECT_EQ(result.weights, nullptr);
}

TEST(FoldJobTest, AnOverflowingSumBlamesNobody) {
  const float huge = std::numeric_limits<float>::max();
  const FoldResult result =
      Fold({.contributions = {{.rank = Rank(0), .gradient = RopeOver({huge})},
                              {.rank = Rank(1), .gradient = RopeOver({huge})}},
            .slices = {{.count = 1, .rule = PlainStep(kPlain)}},
            .weights = BufferOf({0})});
  ASSERT_TRUE(result.nonfinite.has_value());
  EXPECT_FALSE(result.nonfinite->rank.has_value());
}

}  // namespace
}  // namespace cohort
