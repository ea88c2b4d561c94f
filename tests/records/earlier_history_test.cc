#include "server/records/earlier_history.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/time/time.h"

namespace cohort {
namespace {

TEST(EarlierHistoryTest, TimeOfCommitsWithoutARowIsEstimated) {
  const std::string rest = ",0.5,0.25,0.1,9,,,2,sync,,,,";
  const EarlierHistory history = EarlierHistoryOf(
      {"50,1,200,10" + rest, "100,1,400,30" + rest}, Version(130));
  ASSERT_EQ(history.training.size(), 2u);
  EXPECT_EQ(history.training[1].commits, 50);
  // 200 images with a mean loss of 0.5.
  EXPECT_EQ(history.training[1].loss_sum, 100);
  EXPECT_EQ(history.training[1].loss_weight, 200);
  EXPECT_EQ(history.training[1].correct, 50);
  // 20 s for 50 commits: 12 s for the 30 that have no row.
  EXPECT_EQ(history.elapsed, absl::Seconds(42));
  EXPECT_FALSE(history.test.has_value());
}

TEST(EarlierHistoryTest, NoRowsAreNoCourse) {
  const EarlierHistory history =
      EarlierHistoryOf({"of,another,release", ""}, Version(130));
  EXPECT_TRUE(history.training.empty());
  EXPECT_EQ(history.elapsed, absl::ZeroDuration());
}

}  // namespace
}  // namespace cohort
