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
}

}  // namespace
}  // namespace cohort
