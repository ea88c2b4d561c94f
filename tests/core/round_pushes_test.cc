#include "server/core/step/round_pushes.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cohort {
namespace {

constexpr Rank kRank0(0);
constexpr Rank kRank1(1);

// Two ranks that send three partitions each.
class RoundPushesTest : public ::testing::Test {
 protected:
  RoundPushesTest() {
    for (const Rank rank : {kRank0, kRank1}) {
      pushes_.Add(rank);
      pushes_.Open(rank, {}, {});
    }
  }
  void Take(Rank rank, int32_t partition) {
    pushes_.Take(rank, {.partition = partition});
  }

  RoundPushes pushes_{3, 3};
};

TEST_F(RoundPushesTest, RanksWithTheFewestPartitionsAreFurthestBehind) {
  EXPECT_TRUE(pushes_.IsFurthestBehind(kRank0));
  EXPECT_TRUE(pushes_.IsFurthestBehind(kRank1));
  Take(kRank1, 0);
  EXPECT_TRUE(pushes_.IsFurthestBehind(kRank0));
  EXPECT_FALSE(pushes_.IsFurthestBehind(kRank1));
  Take(kRank0, 2);
  EXPECT_TRUE(pushes_.IsFurthestBehind(kRank1));
}

TEST_F(RoundPushesTest, RepeatedPartitionDoesNotCount) {
  Take(kRank1, 0);
  Take(kRank0, 0);
  Take(kRank0, 0);
  EXPECT_TRUE(pushes_.IsFurthestBehind(kRank0));
}

TEST_F(RoundPushesTest, NoOneIsBehindARankThatHasLeft) {
  Take(kRank1, 0);
  pushes_.Erase(kRank0);
  EXPECT_TRUE(pushes_.IsFurthestBehind(kRank1));
}

// A rank that is added twice, as after a loss, counts once.
TEST_F(RoundPushesTest, RankCountsOnce) {
  pushes_.Add(kRank0);
  Take(kRank0, 0);
  Take(kRank1, 0);
  EXPECT_TRUE(pushes_.IsFurthestBehind(kRank1));
}

}  // namespace
}  // namespace cohort
