#include "server/metrics/rate_meter.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "absl/time/time.h"

namespace cohort {
namespace {

TEST(RateMeterTest, IsThatOfTheLastTenSeconds) {
  RateMeter rate;
  StatusView status{.phase = StatusView::Phase::kTraining};
  const auto add = [&rate, &status](int64_t second, int64_t samples) {
    status.samples = samples;
    rate.Add(absl::Seconds(second), status);
  };
  EXPECT_EQ(rate.per_second(), 0);
  add(0, 0);
  add(20, 1000);
  add(25, 1010);
  EXPECT_EQ(rate.per_second(), 2);
  // A slow worker lowers the rate.
  status.phase = StatusView::Phase::kWaiting;
  status.workers = {{.rank = Rank(0), .activity = "computing"}};
  status.waited_for = {Rank(0)};
  add(30, 1010);
  EXPECT_EQ(rate.per_second(), 1);
  EXPECT_EQ(rate.now_per_second(), 1);
  // A pause of 40 s does not.
  status.workers[0].activity = "vacant";
  add(31, 1010);
  add(64, 1010);
  EXPECT_EQ(rate.per_second(), 1);
  EXPECT_EQ(rate.now_per_second(), 0);
  status.phase = StatusView::Phase::kTraining;
  add(65, 1010);
  EXPECT_EQ(rate.per_second(), 1);
  add(66, 1015);
  EXPECT_EQ(rate.per_second(), 5);
}

}  // namespace
}  // namespace cohort
