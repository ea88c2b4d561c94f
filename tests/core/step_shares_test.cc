#include "server/core/ledger/step_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/limits.h"
#include "common/permutation.h"

namespace cohort {
namespace {

using testing::ElementsAre;

TEST(StepSharesTest, WithoutANumberEachHasItsBatch) {
  const StepShares shares = ShareStep({4, 1, 3}, 0);
  EXPECT_THAT(shares.samples, ElementsAre(4, 1, 3));
  EXPECT_EQ(shares.batches, 1);
}

TEST(StepSharesTest, AreCutToAddUp) {
  const StepShares shares = ShareStep({8, 8, 8}, 16);
  EXPECT_THAT(shares.samples, ElementsAre(5, 5, 6));
  EXPECT_EQ(shares.batches, 1);
}

TEST(StepSharesTest, FewerWorkersComputeMoreBatches) {
  EXPECT_THAT(ShareStep({8, 8}, 16).samples, ElementsAre(8, 8));
  EXPECT_EQ(ShareStep({8, 8}, 16).batches, 1);
  EXPECT_THAT(ShareStep({8}, 16).samples, ElementsAre(16));
  EXPECT_EQ(ShareStep({8}, 16).batches, 2);
  EXPECT_EQ(ShareStep({8}, 17).batches, 3);
}

TEST(StepSharesTest, GoByTheBatchSizes) {
  EXPECT_THAT(ShareStep({2, 6}, 16).samples, ElementsAre(4, 12));
  EXPECT_EQ(ShareStep({2, 6}, 16).batches, 2);
}

TEST(StepSharesTest, ASmallBatchBesideLargeOnesHasASample) {
  EXPECT_THAT(ShareStep({1, 100, 100}, 5).samples, ElementsAre(1, 2, 2));
}

// The end of an epoch.
TEST(StepSharesTest, FewerSamplesThanWorkersLeaveSomeWithout) {
  EXPECT_THAT(ShareStep({2, 2, 2}, 2).samples, ElementsAre(0, 1, 1));
}

TEST(StepSharesTest, BatchesForHoldAllSamples) {
  EXPECT_EQ(BatchesFor(0, 4), 1);
  EXPECT_EQ(BatchesFor(4, 4), 1);
  EXPECT_EQ(BatchesFor(5, 4), 2);
}

TEST(StepSharesTest, WeightsDivideTheSameSamples) {
  const ShareRule rule{.weights = {1, 3}, .batch_sizes_max = {0, 0}};
  EXPECT_THAT(ShareStep({4, 4}, 0, rule).samples, ElementsAre(2, 6));
  EXPECT_THAT(ShareStep({4, 4}, 16, rule).samples, ElementsAre(4, 12));
  EXPECT_EQ(ShareStep({4, 4}, 16, rule).batches, 2);
}

// Quotas 1.5, 1.5, 3: of equal remainders the first is rounded up.
TEST(StepSharesTest, WeightsAreRoundedByTheLargestRemainder) {
  EXPECT_THAT(ShareStep({2, 2, 2}, 0,
                        {.weights = {1, 1, 2}, .batch_sizes_max = {0, 0, 0}})
                  .samples,
              ElementsAre(2, 1, 3));
  EXPECT_THAT(ShareStep({4, 4, 2}, 0,
                        {.weights = {1, 6, 3}, .batch_sizes_max = {0, 0, 0}})
                  .samples,
              ElementsAre(1, 6, 3));
}

TEST(StepSharesTest, WhatExceedsAWorkersMostGoesToTheOthers) {
  EXPECT_THAT(ShareStep({4, 4, 4}, 0,
                        {.weights = {1, 1, 8}, .batch_sizes_max = {0, 0, 6}})
                  .samples,
              ElementsAre(3, 3, 6));
}

TEST(StepSharesTest, ALowWeightStillHasASample) {
  EXPECT_THAT(
      ShareStep({4, 4, 4}, 0,
                {.weights = {1, 1000, 1000}, .batch_sizes_max = {0, 0, 0}})
          .samples,
      ElementsAre(1, 6, 5));
}

TEST(StepSharesTest, AnyWeightsAddUpWithinTheLimits) {
  SplitMix64 random(12);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int64_t> sizes;
    ShareRule rule;
    const uint64_t workers = 1 + random.Below(9);
    int64_t sum = 0;
    for (uint64_t i = 0; i < workers; ++i) {
      sizes.push_back(static_cast<int64_t>(1 + random.Below(20)));
      sum += sizes.back();
      rule.weights.push_back(static_cast<int64_t>(
          1 + random.Below(uint64_t{1} << random.Below(21))));
      rule.batch_sizes_max.push_back(
          random.Below(3) == 0
              ? 0
              : sizes.back() + static_cast<int64_t>(random.Below(20)));
    }
    const auto samples = static_cast<int64_t>(1 + random.Below(300));
    const StepShares shares = ShareStep(sizes, samples, rule);
    ASSERT_EQ(shares.batches, BatchesFor(samples, sum));
    int64_t total = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      total += shares.samples[i];
      const int64_t most = rule.batch_sizes_max[i];
      ASSERT_TRUE(most == 0 || shares.samples[i] <= most * shares.batches);
      ASSERT_GE(shares.samples[i],
                samples >= static_cast<int64_t>(workers) ? 1 : 0);
      // Within the limits, more weight never means fewer samples.
      for (size_t k = 0; k < i; ++k) {
        if (rule.batch_sizes_max[i] == 0 && rule.batch_sizes_max[k] == 0 &&
            rule.weights[i] > rule.weights[k]) {
          ASSERT_GE(shares.samples[i], shares.samples[k]);
        }
      }
    }
    ASSERT_EQ(total, samples);
  }
}

TEST(StepSharesTest, AnySharesAddUpAndFitTheirBatches) {
  SplitMix64 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int64_t> sizes;
    const uint64_t workers = 1 + random.Below(9);
    const uint64_t size_max = uint64_t{1} << random.Below(7);
    for (uint64_t i = 0; i < workers; ++i) {
      sizes.push_back(static_cast<int64_t>(1 + random.Below(size_max)));
    }
    const auto samples = static_cast<int64_t>(1 + random.Below(300));
    const StepShares shares = ShareStep(sizes, samples);
    int64_t sum = 0;
    int64_t capacity = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sum += shares.samples[i];
      capacity += sizes[i];
      ASSERT_LE(shares.samples[i], sizes[i] * shares.batches);
      ASSERT_GE(shares.samples[i],
                samples >= static_cast<int64_t>(workers) ? 1 : 0);
    }
    ASSERT_EQ(sum, samples);
    // One batch fewer would not hold them.
    ASSERT_LT(capacity * (shares.batches - 1), samples);
  }
}

TEST(StepSharesTest, TheLargestNumbersFit) {
  const std::vector<int64_t> sizes(limits::kWorkersMax, limits::kBatchSizeMax);
  const StepShares shares = ShareStep(sizes, limits::kGlobalBatchMax);
  EXPECT_THAT(shares.samples,
              testing::Each(limits::kGlobalBatchMax / limits::kWorkersMax));
  const ShareRule rule{.weights = std::vector<int64_t>(limits::kWorkersMax,
                                                       limits::kGlobalBatchMax),
                       .batch_sizes_max = sizes};
  EXPECT_THAT(ShareStep(sizes, 0, rule).samples,
              testing::Each(limits::kBatchSizeMax));
}

}  // namespace
}  // namespace cohort
