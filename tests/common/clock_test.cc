#include "common/clock.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(SecondsTextTest, CutsToTenths) {
  EXPECT_EQ(SecondsText(absl::Milliseconds(10199)), "10.1 s");
  EXPECT_EQ(SecondsText(absl::Seconds(300)), "300 s");
  EXPECT_EQ(SecondsText(absl::Milliseconds(99)), "0 s");
  EXPECT_EQ(SecondsText(absl::InfiniteDuration()), "for ever");
}

}  // namespace
}  // namespace cohort
