#include "worker/datasets/data_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "common/permutation.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/tiny_dataset.h"
#include "worker/datasets/image_table.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kSeed = 5;

DataOrder Order(const Dataset& dataset, const OrderOptions& options,
                const OrderPlace& place) {
  absl::StatusOr<DataOrder> order = DataOrder::Make(dataset, options, place);
  EXPECT_TRUE(order.ok()) << order.status();
  return *std::move(order);
}

// 24 samples; sample i is of class i % 3.
class Threes final : public TinyDataset {
 public:
  int64_t train_size() const override { return 24; }
};

TEST(DataOrderTest, ShuffledIsTheEpochsPermutation) {
  const TinyDataset dataset;
  DataOrder order = Order(dataset, {}, {.seed = kSeed, .workers = 2});
  const std::vector<int64_t> all = EpochPermutation(kSeed, 3, 14);
  const std::vector<int64_t> wanted(all.begin() + 2, all.begin() + 6);
  EXPECT_EQ(order.Training(3, {.begin = 2, .end = 6}), wanted);
  EXPECT_EQ(order.Common(3, {.begin = 2, .end = 6}), wanted);
}

TEST(DataOrderTest, ALimitDrawsOtherSamplesEachEpoch) {
  const TinyDataset dataset;
  DataOrder order = Order(dataset, {.limit = 4}, {.seed = kSeed, .workers = 1});
  EXPECT_EQ(order.epoch_size(), 4);
  const IndexRange epoch = {.begin = 0, .end = 4};
  const std::vector<int64_t> first = order.Training(0, epoch);
  EXPECT_NE(first, order.Training(1, epoch));
  // The order is the same for any cohort.
  EXPECT_EQ(first, Order(dataset, {.limit = 4}, {.seed = kSeed, .workers = 1})
                       .Training(0, epoch));
}

// Two workers with batches of 3, cut as the server cuts synchronous steps.
TEST(DataOrderTest, SortedSharesAreByClassAndReadOnceAnEpoch) {
  const Threes dataset;
  const OrderOptions sorted = {.kind = OrderKind::kSorted};
  std::set<int64_t> seen;
  for (const int32_t rank : {0, 1}) {
    DataOrder order = Order(
        dataset, sorted,
        {.seed = kSeed, .rank = Rank(rank), .workers = 2, .batch_size = 3});
    for (int64_t step = 0; step < 4; ++step) {
      const int64_t begin = 6 * step + 3 * rank;
      for (const int64_t sample :
           order.Training(0, {.begin = begin, .end = begin + 3})) {
        EXPECT_TRUE(seen.insert(sample).second) << sample;
        // The first half has all of class 0 and half of class 1.
        EXPECT_NE(sample % 3, rank == 0 ? 2 : 0) << sample;
      }
    }
  }
  EXPECT_EQ(seen.size(), 24U);
}

TEST(DataOrderTest, SharesAreInAnotherOrderEachEpoch) {
  const Threes dataset;
  DataOrder order = Order(dataset, {.kind = OrderKind::kSorted},
                          {.seed = kSeed, .workers = 2, .batch_size = 4});
  const IndexRange range = {.begin = 0, .end = 4};
  EXPECT_NE(order.Training(0, range), order.Training(1, range));
}

// All ranks draw the same common batch, and it has the same samples as
// training's batches.
TEST(DataOrderTest, ASortedCommonBatchIsThatOfTheRankWhoseTurnItIs) {
  const Threes dataset;
  const OrderOptions sorted = {.kind = OrderKind::kSorted};
  std::vector<DataOrder> orders;
  for (const int32_t rank : {0, 1}) {
    orders.push_back(Order(
        dataset, sorted,
        {.seed = kSeed, .rank = Rank(rank), .workers = 2, .batch_size = 3}));
  }
  const IndexRange second_of_step_one = {.begin = 9, .end = 12};
  const std::vector<int64_t> common = orders[0].Common(0, second_of_step_one);
  EXPECT_EQ(common, orders[1].Common(0, second_of_step_one));
  for (const int64_t sample : common) EXPECT_NE(sample % 3, 0);
  // A batch of both ranks has the samples of both.
  const std::vector<int64_t> step =
      orders[0].Common(0, {.begin = 6, .end = 12});
  EXPECT_TRUE(std::equal(common.begin(), common.end(), step.begin() + 3));
}

TEST(DataOrderTest, RangesBeyondAShareBeginItAgain) {
  const Threes dataset;
  DataOrder order = Order(dataset, {.kind = OrderKind::kSorted},
                          {.seed = kSeed, .workers = 2, .batch_size = 5});
  const std::vector<int64_t> samples =
      order.Training(0, {.begin = 20, .end = 24});
  ASSERT_EQ(samples.size(), 4U);
  // Places 10, 11, 0 and 1 of a share of 12.
  EXPECT_EQ(samples[2], order.Training(0, {.begin = 0, .end = 1})[0]);
}

TEST(DataOrderTest, TestSamplesAreSpreadEvenly) {
  const TinyDataset dataset;
  const DataOrder order =
      Order(dataset, {.test_limit = 2}, {.seed = kSeed, .workers = 1});
  EXPECT_EQ(order.test_size(), 2);
  EXPECT_THAT(order.Test({.begin = 0, .end = 2}), ElementsAre(0, 2));
  const DataOrder all = Order(dataset, {}, {.seed = kSeed, .workers = 1});
  EXPECT_THAT(all.Test({.begin = 1, .end = 4}), ElementsAre(1, 2, 3));
  EXPECT_THAT(all.MixedTest({.begin = 0, .end = 5}),
              testing::UnorderedElementsAre(0, 1, 2, 3, 4));
}

TEST(DataOrderTest, WhatDoesNotFitIsNamed) {
  const TinyDataset dataset;
  EXPECT_THAT(CheckFits(OrderOptions{.limit = 15}, dataset),
              IsError(kInvalidArgument, "--limit: got 15, want 1 to 14"));
  EXPECT_THAT(CheckFits(OrderOptions{.test_limit = -1}, dataset).message(),
              HasSubstr("--test_limit: got -1, want 1 to 5"));
  EXPECT_TRUE(CheckFits({}, dataset).ok());
  EXPECT_THAT(
      DataOrder::Make(dataset, {.kind = OrderKind::kSorted}, {.workers = 15}),
      IsError(kInvalidArgument, "got 14 training samples"));
  EXPECT_EQ(OrderKindNamed("sorted"), OrderKind::kSorted);
}

TEST(DataOrderTest, WorkersCompareTheOrder) {
  const TinyDataset dataset;
  EXPECT_EQ(PlanName({}, dataset), "tiny");
  EXPECT_EQ(PlanName({.kind = OrderKind::kSorted}, dataset),
            "tiny, sorted by class");
}

TEST(TrainClassesTest, AMasksClassIsItsCommonestThatCounts) {
  // Four masks of 1x3.
  ImageTable table{.name = "masks",
                   .task = DatasetTask::kSegmentation,
                   .classes = 3,
                   .channels = 1,
                   .height = 1,
                   .width = 3,
                   .train = {.samples = 4,
                             .pixels = std::vector<uint8_t>(12),
                             .masks = {2, 2, 0,                 //
                                       1, 0, 2,                 //
                                       kIgnoredInMask, 255, 1,  //
                                       255, 255, 255}}};
  const std::unique_ptr<Dataset> dataset =
      MakeImageDataset(std::move(table), {});
  EXPECT_THAT(dataset->TrainClasses(), ElementsAre(2, 0, 1, 3));
}

}  // namespace
}  // namespace cohort
