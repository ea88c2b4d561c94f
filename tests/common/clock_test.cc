#include "common/clock.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(SecondsTextTest, CutsToTenthsAndGoesOnInMinutes) {
  EXPECT_EQ(SecondsText(absl::Milliseconds(10199)), "10.1 s");
  EXPECT_EQ(SecondsText(absl::Seconds(300)), "5 min");
  EXPECT_EQ(SecondsText(absl::Milliseconds(99)), "0 s");
  EXPECT_EQ(SecondsText(absl::Milliseconds(59999)), "59.9 s");
  EXPECT_EQ(SecondsText(absl::Milliseconds(592900)), "9 min 52 s");
  EXPECT_EQ(SecondsText(absl::InfiniteDuration()), "for ever");
}

TEST(HumanDurationTest, LeavesOutARestOfZero) {
  EXPECT_EQ(HumanDuration(absl::Milliseconds(59999)), "59 s");
  EXPECT_EQ(HumanDuration(absl::Seconds(60)), "1 min");
  EXPECT_EQ(HumanDuration(absl::Seconds(200)), "3 min 20 s");
  EXPECT_EQ(HumanDuration(absl::Seconds(7259)), "2 h");
  EXPECT_EQ(HumanDuration(absl::Minutes(125)), "2 h 5 min");
}

}  // namespace
}  // namespace cohort
