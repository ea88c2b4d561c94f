#include "server/core/membership/rank_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

using State = Worker::State;

constexpr Instant kNow = absl::Seconds(9);

TEST(RankTableTest, StartsVacantWithTheLowestRankFirst) {
  RankTable table(3);
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(table.live(), 0);
  EXPECT_EQ(table.LowestVacant()->rank, Rank(0));
  table.Transition(table[Rank(0)], State::kLive, kNow);
  EXPECT_EQ(table.LowestVacant()->rank, Rank(1));
  EXPECT_FALSE(table.Contains(Rank(3)));
  EXPECT_FALSE(table.Contains(Rank(-1)));
}

TEST(RankTableTest, UsableMeansLiveAndRegistered) {
  RankTable table(2);
  table.Transition(table[Rank(1)], State::kLive, kNow);
  EXPECT_TRUE(table.Usable().empty());
  table[Rank(1)].registered = true;
  EXPECT_EQ(table.Usable(), std::vector<Rank>{Rank(1)});
  table.Transition(table[Rank(1)], State::kReconnecting, kNow);
  EXPECT_TRUE(table.Usable().empty());
}

TEST(RankTableTest, FindsOnlyLiveWorkersBySession) {
  RankTable table(1);
  Worker& worker = table[Rank(0)];
  table.BindSession(worker, SessionId(4));
  EXPECT_EQ(table.BySession(SessionId(4)), nullptr);
  table.Transition(worker, State::kLive, kNow);
  EXPECT_EQ(table.BySession(SessionId(4)), &worker);
  table.Transition(worker, State::kReconnecting, kNow);
  EXPECT_EQ(table.BySession(SessionId(4)), nullptr);
}

TEST(RankTableTest, ANewSessionReplacesTheOldOneAndOneOfALostRankIsForgotten) {
  RankTable table(2);
  for (int32_t i : {0, 1}) {
    table.Transition(table[Rank(i)], State::kLive, kNow);
    table.BindSession(table[Rank(i)], SessionId(4 + i));
  }
  table.BindSession(table[Rank(0)], SessionId(9));
  EXPECT_EQ(table.BySession(SessionId(4)), nullptr);
  EXPECT_EQ(table.BySession(SessionId(9)), &table[Rank(0)]);
  table.Resize(1);
  EXPECT_EQ(table.BySession(SessionId(5)), nullptr);
}

TEST(RankTableTest, LeavingLiveIsRemembered) {
  RankTable table(1);
  Worker& worker = table[Rank(0)];
  table.Transition(worker, State::kLive, kNow);
  table.Transition(worker, State::kReconnecting, kNow + absl::Seconds(1));
  EXPECT_EQ(worker.lost_at, kNow + absl::Seconds(1));
}

TEST(RankTableDeathTest, AVacantRankCannotReconnect) {
  RankTable table(1);
  EXPECT_DEATH(table.Transition(table[Rank(0)], State::kReconnecting, kNow),
               "rank 0: vacant to reconnecting");
  EXPECT_DEATH(table.Transition(table[Rank(0)], State::kVacant, kNow),
               "rank 0: vacant to vacant");
}

}  // namespace
}  // namespace cohort
