#include "server/core/push.h"

#include <gtest/gtest.h>

#include <array>

#include "absl/types/span.h"

namespace cohort {
namespace {

using Arrival = Push::Arrival;

ByteRope Rope(float value) {
  const std::array<float, 1> values = {value};
  return ByteRope::Copy(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(values.data()), sizeof(values)));
}

TEST(PushTest, IsCompleteOnceOpenedClosedAndWhole) {
  Push push(3);
  EXPECT_EQ(push.Open({.samples = 4}), Arrival::kNew);
  EXPECT_EQ(push.Add(2, Rope(1), 11, {}), Arrival::kNew);
  EXPECT_EQ(push.Close({.loss_sum = 1}), Arrival::kNew);
  EXPECT_FALSE(push.Complete(2));
  EXPECT_EQ(push.Add(0, Rope(2), 12, {}), Arrival::kNew);
  EXPECT_TRUE(push.Complete(2));
  EXPECT_TRUE(push.Has(0));
  EXPECT_FALSE(push.Has(1));
}

TEST(PushTest, ARepetitionIsToldFromAMismatch) {
  Push push(1);
  push.Open({.samples = 4, .loss_weight = 2});
  EXPECT_EQ(push.Open({.samples = 4, .loss_weight = 2}), Arrival::kRepeated);
  EXPECT_EQ(push.Open({.samples = 4, .loss_weight = 3}), Arrival::kMismatch);
  push.Add(0, Rope(1), 11, {0});
  EXPECT_EQ(push.Add(0, Rope(1), 11, {0}), Arrival::kRepeated);
  EXPECT_EQ(push.Add(0, Rope(2), 12, {0}), Arrival::kMismatch);
  EXPECT_EQ(push.Add(0, Rope(1), 11, {}), Arrival::kMismatch);
  push.Close({.loss_sum = 1});
  EXPECT_EQ(push.Close({.loss_sum = 1}), Arrival::kRepeated);
  EXPECT_EQ(push.Close({.loss_sum = 2}), Arrival::kMismatch);
}

TEST(PushTest, TheFirstContentCountsAndIsHandedOverOnce) {
  Push push(1);
  push.Add(0, Rope(1), 11, {});
  push.Add(0, Rope(2), 12, {});
  EXPECT_EQ(push.TakeGradient(0).ToString(), Rope(1).ToString());
  EXPECT_EQ(push.TakeGradient(0).size_bytes(), 0);
  EXPECT_TRUE(push.Has(0));
}

}  // namespace
}  // namespace cohort
