#include "server/metrics/shard_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "tests/run_host/run_host_fakes.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Shard 0 and two data shards.
class ShardStatsTest : public ::testing::Test {
 protected:
  std::shared_ptr<MovedClock> clock_ = std::make_shared<MovedClock>();
  ShardStats stats_{{"a:1", "b:2"}, clock_};
};

TEST_F(ShardStatsTest, NamesWhoIsNotThereYet) {
  EXPECT_EQ(stats_.WaitingText(),
            "waiting for data shard 1 at a:1, not there yet; data shard 2 at "
            "b:2, not there yet");
  EXPECT_EQ(stats_.Attached(1, 5), std::nullopt);
  // The name is said once.
  stats_.Missing(2, "data shard 2 at b:2: unknown host");
  EXPECT_EQ(stats_.WaitingText(),
            "waiting for data shard 2 at b:2, not there yet: unknown host");
  EXPECT_EQ(stats_.Attached(2, 5), std::nullopt);
  EXPECT_EQ(stats_.WaitingText(), "");
}

TEST_F(ShardStatsTest, ALostShardIsNamedUntilItIsBack) {
  stats_.Attached(1, 5);
  stats_.Attached(2, 5);
  stats_.Lost(2, "it was killed");
  clock_->Advance(absl::Seconds(12));
  EXPECT_EQ(stats_.WaitingText(),
            "waiting for data shard 2 at b:2, gone for 12 s: it was killed");
  stats_.Missing(2, "cannot be reached");
  EXPECT_EQ(
      stats_.WaitingText(),
      "waiting for data shard 2 at b:2, gone for 12 s: cannot be reached");
  ShardFigures lost = stats_.figures(nullptr)[2];
  EXPECT_FALSE(lost.connected);
  EXPECT_EQ(lost.losses, 1);
  EXPECT_EQ(lost.lost_because, "cannot be reached");
  // Shard 0 of the next generation finds the first as it was.
  EXPECT_EQ(stats_.Attached(1, 6), std::nullopt);
  EXPECT_EQ(stats_.Attached(2, 6), absl::Seconds(12));
  EXPECT_EQ(stats_.WaitingText(), "");
  const std::vector<ShardFigures> figures = stats_.figures(nullptr);
  EXPECT_TRUE(figures[2].connected);
  EXPECT_EQ(figures[2].losses, 1);
  EXPECT_EQ(figures[2].lost_because, "it was killed");
  EXPECT_EQ(figures[1].losses, 0);
  for (const ShardFigures& shard : figures) EXPECT_EQ(shard.generation, 6);
}

TEST_F(ShardStatsTest, ALossIsCountedOnce) {
  stats_.Lost(1, "it was never there");
  EXPECT_EQ(stats_.figures(nullptr)[1].losses, 0);
  stats_.Attached(1, 5);
  stats_.Lost(1, "first");
  stats_.Lost(1, "second");
  EXPECT_EQ(stats_.figures(nullptr)[1].losses, 1);
  EXPECT_EQ(stats_.figures(nullptr)[1].lost_because, "first");
}

TEST_F(ShardStatsTest, AShardThatIsNotReachedAnyMoreIsGoneWithoutALoss) {
  stats_.Attached(1, 5);
  stats_.Attached(2, 5);
  stats_.Missing(1, "no connection");
  clock_->Advance(absl::Seconds(2));
  EXPECT_NE(stats_.WaitingText(), "");
  EXPECT_EQ(stats_.figures(nullptr)[1].losses, 0);
  EXPECT_EQ(stats_.Attached(1, 6), absl::Seconds(2));
}

TEST_F(ShardStatsTest, TheLastShardAloneHoldsACommitUp) {
  EXPECT_EQ(stats_.figures(nullptr)[0].prepare_seconds, std::nullopt);
  stats_.Planned(7);
  clock_->Advance(absl::Seconds(1));
  stats_.Folded(0, 7);
  stats_.Folded(2, 7);
  clock_->Advance(absl::Seconds(1));
  stats_.Folded(2, 7);
  clock_->Advance(absl::Seconds(3));
  stats_.Folded(1, 7);
  const std::vector<ShardStats::Prepared> prepared = stats_.Committed(7);
  ASSERT_EQ(prepared.size(), 3u);
  EXPECT_EQ(prepared[2].shard, 2);
  EXPECT_EQ(prepared[2].end - prepared[2].begin, absl::Seconds(2));
  const std::vector<ShardFigures> figures = stats_.figures(nullptr);
  EXPECT_EQ(figures[0].prepare_seconds, 1);
  EXPECT_EQ(figures[1].prepare_seconds, 5);
  EXPECT_EQ(figures[2].prepare_seconds, 2);
  // Shard 2 was ready after 2 s, so that 3 s are shard 1's alone.
  EXPECT_EQ(figures[0].holdup_seconds_total, 0);
  EXPECT_EQ(figures[1].holdup_seconds_total, 3);
  EXPECT_EQ(figures[2].holdup_seconds_total, 0);
}

TEST_F(ShardStatsTest, AFoldOfAnEarlierTransactionCountsForNothing) {
  stats_.Planned(7);
  stats_.Folded(1, 7);
  stats_.Planned(8);
  clock_->Advance(absl::Seconds(1));
  stats_.Folded(1, 7);
  EXPECT_THAT(stats_.Committed(7), IsEmpty());
  EXPECT_THAT(stats_.Committed(8), IsEmpty());
  EXPECT_EQ(stats_.figures(nullptr)[1].prepare_seconds, std::nullopt);
}

TEST_F(ShardStatsTest, EachShardHasItsPartOfTheModel) {
  RegisteredModel model;
  for (int64_t elements : {10, 20, 30, 40}) {
    model.partitions.push_back({.elements = elements});
  }
  const std::vector<ShardFigures> figures = stats_.figures(&model);
  std::vector<int64_t> bytes;
  std::vector<int32_t> partitions;
  for (const ShardFigures& shard : figures) {
    bytes.push_back(shard.weights_bytes);
    partitions.push_back(shard.partitions);
  }
  EXPECT_THAT(partitions, ElementsAre(2, 1, 1));
  EXPECT_THAT(bytes, ElementsAre(200, 80, 120));
}

}  // namespace
}  // namespace cohort
