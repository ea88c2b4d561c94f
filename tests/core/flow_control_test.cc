#include "server/core/step/flow_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <variant>

#include "absl/time/time.h"
#include "server/core/membership/rank_table.h"
#include "server/core/step/arrived_push.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Rank kRank{0};
constexpr int64_t kLimit = 10;

class FlowControlTest : public ::testing::Test {
 protected:
  FlowControlTest() { push_.Open({.sequence = Sequence(1)}, {.samples = 1}); }

  RankTable ranks_{2};
  FlowControl flow_{kLimit, ranks_};
  ArrivedPush push_{2};
  Effects out_;
  Turn turn_{.now = absl::Seconds(5), .out = out_};
};

TEST_F(FlowControlTest, PausedRankIsResumedOnceAndStaysPausedUntilThen) {
  flow_.Pause(kRank, 4, turn_.now);
  EXPECT_THAT(flow_.PausedRanks(), ElementsAre(kRank));
  flow_.Resume([](Rank, int64_t) { return false; }, turn_);
  EXPECT_THAT(out_, IsEmpty());
  flow_.Resume([](Rank, int64_t) { return true; }, turn_);
  flow_.Resume([](Rank, int64_t) { return true; }, turn_);
  ASSERT_THAT(out_, SizeIs(1));
  EXPECT_TRUE(std::holds_alternative<effect::ResumeGradients>(out_[0]));
  EXPECT_FALSE(flow_.IsPaused(kRank));
}

TEST_F(FlowControlTest, ReleaseGivesTheRoomBackAndDropsTheGradients) {
  flow_.Charge(kRank, 4);
  push_.Add(0, 4, 11, {});
  flow_.Release(kRank, push_, turn_);
  EXPECT_EQ(flow_.budget().inflight_bytes(), 0);
  ASSERT_THAT(out_, SizeIs(1));
  EXPECT_EQ(std::get<command::Drop>(out_[0]).push.key, push_.key());
}

// Otherwise the charge of its next push and its reservation would be added up,
// and never given back.
TEST_F(FlowControlTest, RankThatWasLetInAsksForRoomAnewAfterItsPushIsOver) {
  flow_.budget().Charge(kLimit);
  flow_.budget().Reserve(kRank, 8);
  flow_.Pause(kRank, 4, turn_.now);
  flow_.LetInPaused();
  ASSERT_TRUE(flow_.IsLetIn(kRank));
  flow_.Charge(kRank, 4);
  push_.Add(0, 4, 11, {});
  flow_.Release(kRank, push_, turn_);
  EXPECT_FALSE(flow_.IsLetIn(kRank));
  EXPECT_EQ(flow_.budget().inflight_bytes(), kLimit);
}

}  // namespace
}  // namespace cohort
