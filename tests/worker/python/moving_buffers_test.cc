#include "worker/python/moving_buffers.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

// One layer of two channels, and its buffers.
class MovingBuffersTest : public ::testing::Test {
 protected:
  MovingBuffersTest() {
    buffers_.Attach({{.mean = mean_.data(),
                      .variance = variance_.data(),
                      .tracked = &tracked_}});
    buffers_.Load({&version_, 1});
  }

  // A training call with N = 4, means 2 and 4, and M2 = 6 and 12.
  void Move(std::optional<double> momentum = 0.5) {
    buffers_.Move({.place = {.call = calls_++},
                   .epsilon = 1e-5,
                   .update = {.place = {.mean = mean_.data(),
                                        .variance = variance_.data(),
                                        .tracked = &tracked_},
                              .momentum = momentum},
                   .all = &all_});
  }

  std::vector<LayerChanges> Close() {
    const absl::StatusOr<std::vector<LayerChanges>> changes = buffers_.Close();
    EXPECT_TRUE(changes.ok()) << changes.status();
    return changes.value_or(std::vector<LayerChanges>());
  }

  MovingBuffers buffers_{{{.name = "bn", .channels = 2}}};
  std::vector<float> mean_ = {7, 7};
  std::vector<float> variance_ = {7, 7};
  int64_t tracked_ = 7;
  const LayerStatistics version_ = {
      .mean = {0, 1}, .variance = {1, 2}, .num_batches_tracked = 3};
  const Moments all_ = {.count = 4, .first = {2, 4}, .second = {6, 12}};
  int32_t calls_ = 0;
};

TEST_F(MovingBuffersTest, HoldTheStatisticsOfTheVersion) {
  EXPECT_EQ(mean_, (std::vector<float>{0, 1}));
  EXPECT_EQ(variance_, (std::vector<float>{1, 2}));
  EXPECT_EQ(tracked_, 3);
  buffers_.Begin(/*moves=*/true);
  EXPECT_EQ(Close(), std::vector<LayerChanges>());
}

TEST_F(MovingBuffersTest, MoveAtEachCallByTheUnbiasedVariance) {
  buffers_.Begin(/*moves=*/true);
  Move();
  // 0.5 * 0 + 0.5 * 2, and 0.5 * 1 + 0.5 * 6 / 3.
  EXPECT_EQ(mean_, (std::vector<float>{1, 2.5}));
  EXPECT_EQ(variance_, (std::vector<float>{1.5, 3}));
  EXPECT_EQ(tracked_, 4);
  // Cumulative: a = 1/5.
  Move(std::nullopt);
  EXPECT_FLOAT_EQ(mean_[0], 0.8F * 1 + 0.2F * 2);
  const std::vector<LayerChanges> changes = Close();
  ASSERT_EQ(changes.size(), 1U);
  ASSERT_EQ(changes[0].calls.size(), 2U);
  EXPECT_EQ(changes[0].calls[0].momentum, 0.5);
  EXPECT_EQ(changes[0].calls[1].momentum, std::nullopt);
  EXPECT_TRUE(changes[0].writes.empty());
}

TEST_F(MovingBuffersTest, UnderOtherPoliciesTheServerMovesThemLater) {
  buffers_.Begin(/*moves=*/false);
  Move();
  EXPECT_EQ(mean_, (std::vector<float>{0, 1}));
  EXPECT_EQ(tracked_, 3);
  EXPECT_EQ(Close()[0].calls.size(), 1U);
}

TEST_F(MovingBuffersTest, WritesWithinAStepAreNotedWhereTheyWere) {
  buffers_.Begin(/*moves=*/true);
  Move();
  mean_[1] = 9;
  Move();
  tracked_ = 0;
  const std::vector<LayerChanges> changes = Close();
  ASSERT_EQ(changes.size(), 1U);
  ASSERT_EQ(changes[0].writes.size(), 2U);
  EXPECT_EQ(changes[0].writes[0].after_calls, 1);
  EXPECT_EQ(changes[0].writes[0].values.mean, (std::vector<double>{1, 9}));
  EXPECT_EQ(changes[0].writes[1].after_calls, 2);
  EXPECT_EQ(changes[0].writes[1].values.num_batches_tracked, 0);
}

TEST_F(MovingBuffersTest, AWriteBetweenTwoStepsBelongsToTheNext) {
  mean_ = {5, 6};
  buffers_.Capture();
  buffers_.Load({&version_, 1});
  EXPECT_EQ(mean_, (std::vector<float>{5, 6}));
  buffers_.Begin(/*moves=*/true);
  ASSERT_EQ(Close()[0].writes.size(), 1U);
  // The step became void: it is repeated with what was written.
  buffers_.Load({&version_, 1});
  EXPECT_EQ(mean_, (std::vector<float>{5, 6}));
  buffers_.Begin(/*moves=*/true);
  EXPECT_EQ(Close()[0].writes[0].values.mean, (std::vector<double>{5, 6}));
  buffers_.Committed();
  buffers_.Load({&version_, 1});
  EXPECT_EQ(mean_, (std::vector<float>{0, 1}));
}

TEST_F(MovingBuffersTest, WhatWasPutBackIsNoWrite) {
  const std::vector<float> before = mean_;
  mean_ = {5, 6};
  buffers_.Capture();
  mean_ = before;
  buffers_.Capture();
  buffers_.Begin(/*moves=*/true);
  EXPECT_EQ(Close(), std::vector<LayerChanges>());
}

TEST_F(MovingBuffersTest, ANaNIsEqualToItself) {
  mean_[0] = std::nanf("");
  buffers_.Capture();
  buffers_.Begin(/*moves=*/true);
  EXPECT_EQ(Close()[0].writes.size(), 1U);
}

TEST_F(MovingBuffersTest, ReadsAreNotedByTheCallsBefore) {
  buffers_.Begin(/*moves=*/true);
  EXPECT_TRUE(buffers_.Read(0).ok());
  Move();
  EXPECT_TRUE(buffers_.Read(0).ok());
  EXPECT_TRUE(buffers_.Read(0).ok());
  EXPECT_EQ(Close()[0].reads, (std::vector<int32_t>{0, 1}));
}

TEST_F(MovingBuffersTest, AReadOfStatisticsThatAreNotTheWeightsIsRefused) {
  buffers_.Begin(/*moves=*/false);
  EXPECT_TRUE(buffers_.Read(0).ok());
  Move();
  EXPECT_EQ(buffers_.Read(0).code(), absl::StatusCode::kFailedPrecondition);
  // The version has none.
  buffers_.Load({});
  buffers_.Begin(/*moves=*/true);
  EXPECT_EQ(buffers_.Read(0).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(MovingBuffersTest, AWriteThatTheServerDoesNotTakeIsRefused) {
  buffers_.Begin(/*moves=*/false);
  mean_[0] = 5;
  EXPECT_EQ(buffers_.Close().status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(MovingBuffersTest, OtherBuffersMoveByThemselves) {
  std::vector<float> mean = {0, 0};
  std::vector<float> variance = {1, 1};
  buffers_.Begin(/*moves=*/true);
  buffers_.Move(
      {.place = {.layer = -1, .site = "teacher"},
       .update = {.place = {.mean = mean.data(), .variance = variance.data()},
                  .momentum = 0.5,
                  .own = false},
       .all = &all_});
  EXPECT_EQ(mean, (std::vector<float>{1, 2}));
  EXPECT_EQ(mean_, (std::vector<float>{0, 1}));
  EXPECT_EQ(Close(), std::vector<LayerChanges>());
}

}  // namespace
}  // namespace cohort
