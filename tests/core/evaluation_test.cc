#include "server/core/evaluation/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using Shard = EvaluationBook::Shard;

SharedVersion Snapshot(int64_t version) {
  auto snapshot = std::make_shared<ModelVersion>();
  snapshot->version = Version(version);
  return snapshot;
}

EvaluationBook::Plan PlanOf(int64_t epochs, int64_t test_samples,
                            int32_t shards) {
  return {.epochs = epochs,
          .test_samples = test_samples,
          .shards = shards,
          .kinds = {StatisticsKind::kSync}};
}

EvaluationSums Sums(int64_t correct, int64_t labels) {
  return {.samples = labels,
          .loss_sum = static_cast<double>(labels),
          .loss_weight = static_cast<double>(2 * labels),
          .correct = correct,
          .labels = labels};
}

class EvaluationBookTest : public testing::Test {
 protected:
  EvaluationBook book_;
};

TEST_F(EvaluationBookTest, CutsNearEqualShardsThatCoverTheSplit) {
  book_.Start(Snapshot(5), PlanOf(1, 10, 3));
  std::vector<IndexRange> ranges;
  while (const std::optional<Shard> shard = book_.Take()) {
    EXPECT_EQ(shard->version, Version(5));
    ranges.push_back(shard->range);
  }
  EXPECT_EQ(ranges, (std::vector<IndexRange>{{0, 3}, {3, 6}, {6, 10}}));
}

TEST_F(EvaluationBookTest, NeverMakesEmptyShards) {
  book_.Start(Snapshot(1), PlanOf(1, 2, 5));
  EXPECT_EQ(book_.Take()->range, (IndexRange{0, 1}));
  EXPECT_EQ(book_.Take()->range, (IndexRange{1, 2}));
  EXPECT_FALSE(book_.Take().has_value());
}

TEST_F(EvaluationBookTest, WithoutTestSamplesThereIsNothingToDo) {
  book_.Start(Snapshot(1), PlanOf(1, 0, 2));
  EXPECT_TRUE(book_.empty());
}

TEST_F(EvaluationBookTest, AddsShardsUpAndUnpinsTheVersion) {
  book_.Start(Snapshot(7), PlanOf(2, 8, 2));
  const Shard first = *book_.Take();
  const Shard second = *book_.Take();
  EXPECT_NE(book_.Pinned(Version(7)), nullptr);
  EXPECT_EQ(book_.Pinned(Version(6)), nullptr);
  EXPECT_FALSE(book_.Finish(second, Sums(1, 4)).has_value());
  const EvaluationRecord record = OkValue(book_.Finish(first, Sums(3, 4)));
  EXPECT_EQ(record.version, Version(7));
  EXPECT_EQ(record.epochs, 2);
  EXPECT_EQ(record.sums().samples, 8);
  EXPECT_DOUBLE_EQ(record.accuracy(), 0.5);
  EXPECT_DOUBLE_EQ(record.loss(), 0.5);
  EXPECT_TRUE(book_.empty());
  EXPECT_EQ(book_.Pinned(Version(7)), nullptr);
}

TEST_F(EvaluationBookTest, AddsTheMeasuresOfEachKindUp) {
  EvaluationBook::Plan plan = PlanOf(1, 2, 2);
  plan.kinds = {StatisticsKind::kSync, StatisticsKind::kChief};
  book_.Start(Snapshot(1), plan);
  std::optional<EvaluationRecord> record;
  for (int64_t i = 0; i < 4; ++i) {
    const Shard shard = *book_.Take();
    EvaluationSums sums = Sums(i, 4);
    sums.top5_correct = i + 1;
    sums.classes = {{.intersection = i, .predicted = i, .actual = 4},
                    {.intersection = 0, .predicted = 4 - i, .actual = 0}};
    ASSERT_TRUE(book_.CheckFits(shard, sums).ok());
    record = book_.Finish(shard, sums);
  }
  ASSERT_TRUE(record.has_value());
  const EvaluationSums& sync = record->results[0].sums;
  EXPECT_EQ(*sync.top5_correct, 1 + 2);
  EXPECT_EQ(sync.classes, (std::vector<ClassSums>{{1, 1, 8}, {0, 7, 0}}));
  const EvaluationSums& chief = record->results[1].sums;
  EXPECT_EQ(*chief.top5_correct, 3 + 4);
  EXPECT_EQ(chief.classes, (std::vector<ClassSums>{{5, 5, 8}, {0, 3, 0}}));
}

TEST_F(EvaluationBookTest, MeasuresThatOtherShardsLackDoNotFit) {
  book_.Start(Snapshot(1), PlanOf(1, 2, 2));
  const Shard first = *book_.Take();
  const Shard second = *book_.Take();
  EvaluationSums sums = Sums(1, 1);
  sums.top5_correct = 1;
  EXPECT_TRUE(book_.CheckFits(first, sums).ok());
  book_.Finish(first, sums);
  EXPECT_THAT(book_.CheckFits(second, Sums(1, 1)),
              IsError(kInvalidArgument, "got 0 classes and no top-5 count"));
  EXPECT_TRUE(book_.CheckFits(second, sums).ok());
}

TEST_F(EvaluationBookTest, AReturnedShardIsTheNextToBeTaken) {
  book_.Start(Snapshot(1), PlanOf(1, 3, 3));
  const Shard lost = *book_.Take();
  book_.Return(lost);
  EXPECT_EQ(book_.Take()->index, lost.index);
  EXPECT_EQ(book_.Take()->index, 1);
}

TEST_F(EvaluationBookTest, TheSameVersionIsNotStartedTwice) {
  book_.Start(Snapshot(1), PlanOf(1, 2, 1));
  book_.Start(Snapshot(1), PlanOf(1, 2, 1));
  EXPECT_TRUE(book_.Take().has_value());
  EXPECT_FALSE(book_.Take().has_value());
}

// Two kinds over 4 samples in two shards each.
TEST_F(EvaluationBookTest, EachKindIsEvaluatedOverTheWholeSplit) {
  EvaluationBook::Plan plan = PlanOf(3, 4, 2);
  plan.kinds = {StatisticsKind::kChief, StatisticsKind::kSync};
  plan.on_request = true;
  book_.Start(Snapshot(1), plan);
  std::vector<Shard> shards;
  while (const std::optional<Shard> shard = book_.Take()) {
    shards.push_back(*shard);
  }
  ASSERT_EQ(shards.size(), 4);
  EXPECT_EQ(shards[1].statistics, StatisticsKind::kChief);
  EXPECT_EQ(shards[2].statistics, StatisticsKind::kSync);
  EXPECT_EQ(shards[1].range, (IndexRange{2, 4}));
  EXPECT_EQ(shards[2].range, (IndexRange{0, 2}));
  EXPECT_FALSE(book_.Finish(shards[3], Sums(2, 2)).has_value());
  EXPECT_FALSE(book_.Finish(shards[0], Sums(0, 2)).has_value());
  EXPECT_FALSE(book_.Finish(shards[2], Sums(2, 2)).has_value());
  const EvaluationRecord record = OkValue(book_.Finish(shards[1], Sums(1, 2)));
  EXPECT_EQ(record.epochs, 3);
  EXPECT_TRUE(record.on_request);
  ASSERT_EQ(record.results.size(), 2);
  EXPECT_EQ(record.results[0].statistics, StatisticsKind::kChief);
  EXPECT_DOUBLE_EQ(record.results[0].accuracy(), 0.25);
  EXPECT_EQ(record.results[1].statistics, StatisticsKind::kSync);
  EXPECT_DOUBLE_EQ(record.results[1].accuracy(), 1);
  EXPECT_DOUBLE_EQ(record.accuracy(), 0.25);
}

TEST_F(EvaluationBookTest, WithoutAKindThereIsNothingToDo) {
  EvaluationBook::Plan plan = PlanOf(1, 4, 2);
  plan.kinds.clear();
  book_.Start(Snapshot(1), plan);
  EXPECT_TRUE(book_.empty());
}

}  // namespace
}  // namespace cohort
