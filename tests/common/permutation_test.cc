#include "common/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

namespace cohort {
namespace {

using testing::ElementsAre;

// Published values for this seed.
TEST(SplitMix64Test, GivesTheKnownSequence) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
  EXPECT_EQ(random.Next(), 4593380528125082431u);
  EXPECT_EQ(random.Next(), 16408922859458223821u);
}

TEST(SplitMix64Test, BelowStaysBelowAndReachesEveryValue) {
  SplitMix64 random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random.Below(3));
  EXPECT_THAT(seen, ElementsAre(0u, 1u, 2u));
}

TEST(SplitMix64Test, UniformIsTheTop53Bits) {
  SplitMix64 random(7);
  EXPECT_EQ(random.Uniform(), 3511274219185729.0 / 9007199254740992.0);
}

TEST(MixSeedTest, TellsTheArgumentsApart) {
  EXPECT_EQ(MixSeed(1, 2, 3), 14892593832342890272u);
  EXPECT_EQ(MixSeed(1, 2), 14014240770844213795u);
  EXPECT_EQ(MixSeed(2, 1), 4408770060188708440u);
}

TEST(EpochPermutationTest, HoldsEverySampleOnce) {
  for (int64_t n : {0, 1, 2, 1000}) {
    std::vector<int64_t> order = EpochPermutation(5, 3, n);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), int64_t{0});
    EXPECT_EQ(order, all);
  }
}

// Values from an independent implementation in Python. They must never
// change: other front-ends and old checkpoints rely on the order.
TEST(EpochPermutationTest, GivesTheKnownOrders) {
  EXPECT_THAT(EpochPermutation(1, 0, 10),
              ElementsAre(3, 1, 9, 8, 7, 0, 5, 6, 4, 2));
  EXPECT_THAT(EpochPermutation(1, 1, 10),
              ElementsAre(2, 1, 9, 0, 8, 5, 6, 4, 7, 3));
  EXPECT_THAT(EpochPermutation(2, 0, 10),
              ElementsAre(3, 9, 8, 7, 4, 2, 0, 5, 1, 6));
}

}  // namespace
}  // namespace cohort
