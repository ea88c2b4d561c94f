#include "server/ops/watchers.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace cohort {
namespace {

class WatchersTest : public ::testing::Test {
 protected:
  class HandClock final : public Clock {
   public:
    Instant Now() const override { return now; }
    Instant now;
  };

  void Ask(absl::string_view page, std::initializer_list<double> seconds,
           absl::Duration again = absl::ZeroDuration()) {
    for (double second : seconds) {
      clock_.now = absl::Seconds(second);
      watchers_.Asked(page, again);
    }
  }

  HandClock clock_;
  Watchers watchers_{clock_};
};

TEST_F(WatchersTest, WhoNeverAsksIsNotWaitedFor) {
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
  // A page that has asked twice.
  Ask("/status.json", {1, 2});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
}

// The page announces when it asks again, so that a page opened in a run's last
// second sees the end.
TEST_F(WatchersTest, APageThatHasJustBeenOpenedIsWaitedFor) {
  Ask("/status.json", {1}, absl::Seconds(1));
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(2.25));
  clock_.now = absl::Seconds(4);
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(2.25));
  clock_.now = absl::Seconds(4.5);
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
}

TEST_F(WatchersTest, APageThatIsLateIsWaitedForLonger) {
  Ask("status", {1});
  Ask("/status.json", {1, 2}, absl::Seconds(1));
  const auto seen = [this](double second) {
    clock_.now = absl::Seconds(second);
    return watchers_.HaveSeen(absl::Seconds(2.5), absl::Seconds(2.25));
  };
  EXPECT_FALSE(seen(4.7));
  EXPECT_FALSE(seen(9));
  EXPECT_TRUE(seen(14.75));
  Ask("/status.json", {9}, absl::Seconds(1));
  EXPECT_TRUE(seen(9));
  // Other pages may be open as well.
  EXPECT_FALSE(seen(4.7));
}

TEST_F(WatchersTest, TheSlowestIsWaitedFor) {
  Ask("/metrics", {0, 16, 32});
  Ask("/status.json", {33, 34, 35});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(21));
}

TEST_F(WatchersTest, TwoWhoAskBetweenEachOtherAreTold) {
  Ask("/metrics", {0, 2, 16, 18, 32, 34});
  EXPECT_GE(watchers_.UntilAllAsk(), absl::Seconds(16));
}

TEST_F(WatchersTest, WhoHasGoneIsNotWaitedFor) {
  Ask("/status.json", {1, 2, 3});
  EXPECT_GT(watchers_.UntilAllAsk(), absl::ZeroDuration());
  clock_.now = absl::Seconds(10);
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
  // A page that returns an hour later counts as a new one.
  Ask("/status.json", {3600, 3601});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
  Ask("/status.json", {3602});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(2.25));
}

}  // namespace
}  // namespace cohort
