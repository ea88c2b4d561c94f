#include "server/partitions/pull_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SilentStream final : public PullStream {
 public:
  void End(const absl::Status&) override {}
  void SendPartition() override {}
};

class PullTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<PullStream> Admitted(const std::string& peer,
                                       int64_t version) {
    auto stream = std::make_shared<SilentStream>();
    last_ = table_.Admit(stream, peer, Version(version), now_, evicted_);
    return stream;
  }

  PullTable table_{{.pulls = 3, .pulls_per_peer = 2, .versions = 2}};
  Instant now_ = absl::Seconds(1);
  StreamRegistry::Streams evicted_;
  absl::Status last_;
};

TEST_F(PullTableTest, StalledVersionMakesRoomForANewOne) {
  const auto old = Admitted("a", 1);
  const auto read = Admitted("b", 2);
  Admitted("c", 3);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  now_ += absl::Seconds(2);
  EXPECT_THAT(table_.Await(read.get(), now_), ElementsAre(read));
  Admitted("c", 3);
  EXPECT_TRUE(last_.ok());
  EXPECT_THAT(evicted_, ElementsAre(old));
}

TEST_F(PullTableTest, LimitsFollowTheCohort) {
  Admitted("a", 1);
  Admitted("b", 1);
  Admitted("c", 1);
  Admitted("d", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  table_.SetLimits(PullTable::LimitsOf(1));
  Admitted("d", 1);
  EXPECT_TRUE(last_.ok());
}

TEST_F(PullTableTest, PeerHasItsShareAndAllHaveALimit) {
  const auto first = Admitted("a", 1);
  Admitted("a", 1);
  Admitted("a", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  Admitted("b", 1);
  EXPECT_TRUE(last_.ok());
  Admitted("c", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  EXPECT_THAT(evicted_, IsEmpty());
  EXPECT_THAT(table_.Forget(first.get(), now_), IsEmpty());
  Admitted("c", 1);
  EXPECT_TRUE(last_.ok());
}

TEST_F(PullTableTest, ConnectionsWithoutANameShareTheLimitOfAllOnly) {
  for (int i = 0; i < 3; ++i) {
    Admitted("", 1);
    EXPECT_TRUE(last_.ok()) << last_;
  }
}

// Two partitions may be in transfer at a time, and a wait of 20 s is long.
class PullTurnsTest : public ::testing::Test {
 protected:
  std::shared_ptr<PullStream> Pull() {
    auto stream = std::make_shared<SilentStream>();
    StreamRegistry::Streams evicted;
    EXPECT_TRUE(table_.Admit(stream, "", Version(0), now_, evicted).ok());
    return stream;
  }
  PullTable::Turns Await(const std::shared_ptr<PullStream>& pull) {
    return table_.Await(pull.get(), now_);
  }

  std::array<std::shared_ptr<PullStream>, 3> TwoServedAndOneThatWaits() {
    const auto a = Pull();
    const auto b = Pull();
    const auto c = Pull();
    EXPECT_THAT(Await(a), ElementsAre(a));
    EXPECT_THAT(Await(b), ElementsAre(b));
    EXPECT_THAT(Await(c), IsEmpty());
    return {a, b, c};
  }
  PullTable table_{{.turns = 2}};
  Instant now_ = absl::Seconds(1);
};

TEST_F(PullTurnsTest, FirstPullsAreServedFirst) {
  const auto [a, b, c] = TwoServedAndOneThatWaits();
  // It has a further partition, and began before c.
  EXPECT_THAT(Await(a), ElementsAre(a));
  EXPECT_THAT(table_.Forget(a.get(), now_), ElementsAre(c));
  EXPECT_THAT(table_.Forget(b.get(), now_), IsEmpty());
}

TEST_F(PullTurnsTest, OneThatHasWaitedForLongComesFirst) {
  const auto [a, b, c] = TwoServedAndOneThatWaits();
  for (int i = 0; i < 39; ++i) {
    now_ += absl::Milliseconds(500);
    EXPECT_THAT(Await(a), ElementsAre(a));
    EXPECT_THAT(Await(b), ElementsAre(b));
  }
  now_ += absl::Milliseconds(500);
  EXPECT_THAT(Await(a), ElementsAre(c));
  EXPECT_THAT(Await(c), ElementsAre(a));
}

TEST_F(PullTurnsTest, ReaderThatHasStoppedLosesItsTurn) {
  const auto [stopped, a, b] = TwoServedAndOneThatWaits();
  now_ += absl::Milliseconds(500);
  EXPECT_THAT(Await(a), ElementsAre(a));
  now_ += absl::Milliseconds(500);
  EXPECT_THAT(table_.Tick(now_), ElementsAre(b));
  // It reads again after all, and waits as others do.
  EXPECT_THAT(Await(stopped), IsEmpty());
  EXPECT_THAT(Await(a), ElementsAre(stopped));
}

TEST_F(PullTurnsTest, PullThatIsOverGetsNoTurn) {
  const auto a = Pull();
  EXPECT_THAT(table_.Forget(a.get(), now_), IsEmpty());
  EXPECT_THAT(Await(a), IsEmpty());
}

}  // namespace
}  // namespace cohort
