// Weights that change by bfloat16 only, and what that leaves over.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/bfloat16.h"
#include "common/permutation.h"
#include "kernels/backend.h"
#include "kernels/optimizer_rules.h"
#include "server/partitions/fold_job.h"
#include "tests/core/float_values.h"
#include "tests/fakes/float_ropes.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort {
namespace {

using Floats = std::vector<float>;

std::vector<uint32_t> Bits(const Floats& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// What a worker makes of the weights that it holds.
Floats Added(const SharedFloats& base, const ByteRope& change) {
  const std::string bytes = change.ToString();
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), 2 * base->size());
  Floats sums(static_cast<size_t>(base->size()));
  AddBFloat16(reinterpret_cast<const std::byte*>(base->data()),
              reinterpret_cast<const std::byte*>(bytes.data()), base->size(),
              sums.data());
  return sums;
}

// Every step a worker gets the weights from the change. Weights and remainder
// together follow the sum of all steps, however small they are beside the
// weights.
TEST(RoundedChangeTest, NothingIsLostOverManySteps) {
  constexpr size_t kElements = 5000;
  constexpr int kSteps = 300;
  constexpr double kRate = 0.125;
  SplitMix64 random(11);
  const Floats start = DrawFloats(random, kElements, 1);
  std::vector<double> wanted(start.begin(), start.end());
  FoldJob job{
      .slices = {{.count = kElements, .rule = PlainStep({.rate = kRate})}},
      .weights = BufferOf(start),
      .slots = {.remainder = BufferOf(Floats(kElements, 0))}};
  FloatBufferPool pool;
  for (int step = 0; step < kSteps; ++step) {
    const Floats gradient = DrawFloats(random, kElements, 1e-4);
    for (size_t i = 0; i < kElements; ++i) wanted[i] -= kRate * gradient[i];
    job.contributions = {{.rank = Rank(0), .gradient = RopeOver(gradient)}};
    const FoldResult result = RunFold(job, kernels::CpuBackend(), pool);
    ASSERT_EQ(Bits(Added(job.weights, result.change)),
              Bits(ValuesOf(result.weights)));
    ASSERT_EQ(result.change_checksum, result.change.Checksum());
    job.weights = result.weights;
    job.slots = result.slots;
  }
  for (size_t i = 0; i < kElements; ++i) {
    const double w = job.weights->span()[i];
    const double c = job.slots.remainder->span()[i];
    // Each step rounds the optimizer's weight (below 2) once to float32.
    ASSERT_NEAR(w + c, wanted[i], kSteps * 0x1p-24) << i;
    // Half an ulp of the weight, and of a change: those are below 2e-5.
    ASSERT_LE(std::abs(c), 0x1p-24 + 2e-5 * 0x1p-8) << i;
  }
}

TEST(RoundedChangeTest, FrozenAndSkippedWeightsStayToTheBit) {
  const Floats weights = {-0.0f, 1, -0.0f, 0, 1, 2};
  const Floats remainder = {1e-5f, 2e-5f, -3e-5f, 4e-5f, 0, 6e-5f};
  FoldJob job{.contributions = {{.rank = Rank(0),
                                 .gradient = RopeOver({1, 1, 1, 1, 1, 1})}},
              .slices = {{.count = 2, .skip = true},
                         {.count = 4, .rule = PlainStep({.rate = 0.5})}},
              .weights = BufferOf(weights),
              .slots = {.remainder = BufferOf(remainder)},
              .frozen = std::make_shared<std::vector<ElementRun>>(
                  std::vector<ElementRun>{{.offset = 2, .count = 2}})};
  FloatBufferPool pool;
  const FoldResult result = RunFold(job, kernels::CpuBackend(), pool);
  Floats kept = ValuesOf(result.weights);
  EXPECT_EQ(Bits(Added(job.weights, result.change)), Bits(kept));
  kept.resize(4);
  EXPECT_EQ(Bits(kept), Bits({-0.0f, 1, -0.0f, 0}));
  Floats left = ValuesOf(result.slots.remainder);
  left.resize(4);
  EXPECT_EQ(left, (Floats{1e-5f, 2e-5f, -3e-5f, 4e-5f}));
  EXPECT_EQ(result.weights->span()[4], 0.5f);
}

// Whatever moves the weights: the second pass of a clipped step, Adam.
TEST(RoundedChangeTest, EveryRuleIsRounded) {
  SplitMix64 random(12);
  const Floats gradient = DrawFloats(random, 100, 1);
  FoldJob adam{
      .contributions = {{.rank = Rank(0), .gradient = RopeOver(gradient)}},
      .slices = {{.count = 100,
                  .rule = kernels::RuleOf(OptimizerKind::kAdam)
                              .step({.numbers = {}, .rate = 1e-3})}},
      .weights = BufferOf(DrawFloats(random, 100, 1)),
      .slots = {.first_moment = BufferOf(Floats(100, 0.1f)),
                .second_moment = BufferOf(Floats(100, 0.1f)),
                .remainder = BufferOf(Floats(100, 0)),
                .updates = {3}}};
  FoldJob clipped{.pass = FoldPass::kUpdate,
                  .slices = {{.count = 100, .rule = PlainStep({.rate = 0.1})}},
                  .weights = adam.weights,
                  .slots = {.remainder = BufferOf(Floats(100, 0))},
                  .gradient = BufferOf(gradient)};
  for (const FoldJob& job : {adam, clipped}) {
    FloatBufferPool pool;
    FoldJob exact = job;
    exact.slots.remainder = nullptr;
    const FoldResult plain = RunFold(exact, kernels::CpuBackend(), pool);
    EXPECT_EQ(plain.change.size_bytes(), 0);
    for (const kernels::Backend* backend :
         {&kernels::ReferenceBackend(), &kernels::CpuBackend()}) {
      const FoldResult result = RunFold(job, *backend, pool);
      EXPECT_EQ(Bits(Added(job.weights, result.change)),
                Bits(ValuesOf(result.weights)));
      EXPECT_NE(Bits(ValuesOf(result.weights)), Bits(ValuesOf(plain.weights)));
      for (size_t i = 0; i < 100; ++i) {
        EXPECT_NEAR(
            result.weights->span()[i] + result.slots.remainder->span()[i],
            plain.weights->span()[i], 0x1p-23);
      }
    }
  }
}

TEST(RoundedChangeTest, TheAverageFollowsTheWeightsThatWorkersHold) {
  FoldJob job{
      .contributions = {{.rank = Rank(0), .gradient = RopeOver({1.01f})}},
      .slices = {{.count = 1, .rule = PlainStep({.rate = 1})}},
      .weights = BufferOf({4}),
      .slots = {.average = BufferOf({4}), .remainder = BufferOf({0})},
      .average_gain = 1};
  FloatBufferPool pool;
  const FoldResult result = RunFold(job, kernels::CpuBackend(), pool);
  // 1.01 becomes 1.0078125.
  EXPECT_EQ(ValuesOf(result.weights), Floats{4 - 1.0078125f});
  EXPECT_EQ(ValuesOf(result.slots.average), ValuesOf(result.weights));
}

TEST(RoundedChangeTest, AGradientThatIsNotFiniteHasNoChange) {
  FoldJob job{
      .contributions = {{.rank = Rank(3), .gradient = RopeOver({INFINITY})}},
      .slices = {{.count = 1, .rule = PlainStep({.rate = 1})}},
      .weights = BufferOf({4}),
      .slots = {.remainder = BufferOf({0})}};
  FloatBufferPool pool;
  const FoldResult result = RunFold(job, kernels::CpuBackend(), pool);
  ASSERT_TRUE(result.nonfinite.has_value());
  EXPECT_EQ(result.nonfinite->rank, Rank(3));
  EXPECT_EQ(result.change.size_bytes(), 0);
}

}  // namespace
}  // namespace cohort
