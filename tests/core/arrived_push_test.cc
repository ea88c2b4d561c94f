#include "server/core/step/arrived_push.h"

#include <gtest/gtest.h>

#include <limits>

namespace cohort {
namespace {

using Arrival = ArrivedPush::Arrival;

constexpr PushKey kKey{.sequence = Sequence(5), .attempt = Attempt(1)};

TEST(ArrivedPushTest, IsCompleteOnceOpenedClosedAndWhole) {
  ArrivedPush push(3);
  EXPECT_EQ(push.Open(kKey, {.samples = 4}), Arrival::kNew);
  EXPECT_EQ(push.Add(2, 4, 11, {}), Arrival::kNew);
  EXPECT_EQ(push.Close({.loss_sum = 1}), Arrival::kNew);
  EXPECT_FALSE(push.Complete(2));
  EXPECT_EQ(push.Add(0, 4, 12, {}), Arrival::kNew);
  EXPECT_TRUE(push.Complete(2));
  EXPECT_TRUE(push.Has(0));
  EXPECT_FALSE(push.Has(1));
}

TEST(ArrivedPushTest, ARepetitionIsToldFromAMismatch) {
  ArrivedPush push(1);
  push.Open(kKey, {.samples = 4, .loss_weight = 2});
  EXPECT_EQ(push.Open(kKey, {.samples = 4, .loss_weight = 2}),
            Arrival::kRepeated);
  EXPECT_EQ(push.Open(kKey, {.samples = 4, .loss_weight = 3}),
            Arrival::kMismatch);
  push.Add(0, 4, 11, {0});
  EXPECT_EQ(push.Add(0, 4, 11, {0}), Arrival::kRepeated);
  EXPECT_EQ(push.Add(0, 4, 12, {0}), Arrival::kMismatch);
  EXPECT_EQ(push.Add(0, 4, 11, {}), Arrival::kMismatch);
  push.Close({.loss_sum = 1});
  EXPECT_EQ(push.Close({.loss_sum = 1}), Arrival::kRepeated);
  EXPECT_EQ(push.Close({.loss_sum = 2}), Arrival::kMismatch);
}

TEST(ArrivedPushTest, ARepeatedLossThatIsNotANumberIsARepetition) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ArrivedPush push(1);
  push.Close({.loss_sum = nan});
  EXPECT_EQ(push.Close({.loss_sum = nan}), Arrival::kRepeated);
}

TEST(ArrivedPushTest, BytesAreHeldUntilAFoldTakesThem) {
  ArrivedPush push(2);
  push.Open(kKey, {.samples = 4});
  push.Add(0, 4, 11, {});
  push.Add(1, 8, 12, {});
  push.Add(0, 4, 13, {});
  EXPECT_EQ(push.unfolded_bytes(), 12);
  EXPECT_EQ(push.BeginFold(0), 4);
  EXPECT_EQ(push.BeginFold(0), 0);
  EXPECT_EQ(push.unfolded_bytes(), 8);
  EXPECT_TRUE(push.Has(0));
  EXPECT_EQ(push.key(), kKey);
}

}  // namespace
}  // namespace cohort
