#include "worker/client/kept_weights.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

constexpr Incarnation kThisLife{1};
constexpr Incarnation kNextLife{2};

// One trainable and one frozen partition.
const std::vector<Partition> kTrainableAndFrozen = {
    {.elements = 1}, {.elements = 1, .trainable = false}};

PulledVersion PulledAt(int64_t version) {
  return {.version = Version(version),
          .weights = {ByteRope::CopyText("pull"), ByteRope::CopyText("same")}};
}

PushResult ResultAt(Verdict verdict, int64_t version, const char* weights) {
  return {.verdict = {.verdict = verdict, .version = Version(version)},
          .weights = {ByteRope::CopyText(weights), ByteRope()}};
}

TEST(KeptWeightsTest, WhatWasPulledIsFoundByVersionAndIncarnation) {
  KeptWeights kept;
  EXPECT_EQ(kept.Find(Version(0), Incarnation()), nullptr);
  kept.Take(PulledAt(5), {.weights = true}, kThisLife);
  const auto found = kept.Find(Version(5), kThisLife);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ((*found)[0].ToString(), "pull");
  EXPECT_EQ(kept.Find(Version(6), kThisLife), nullptr);
  EXPECT_EQ(kept.Find(Version(5), kNextLife), nullptr);
  kept.Forget();
  EXPECT_EQ(kept.Find(Version(5), kThisLife), nullptr);
}

TEST(KeptWeightsTest, StatisticsAndAveragesAreNoWeightsOfAVersion) {
  KeptWeights kept;
  kept.Take(PulledAt(5), {.weights = true}, kThisLife);
  kept.Take(PulledAt(6), {.statistics = true}, kThisLife);
  kept.Take(PulledAt(7),
            {.weights = true, .statistics_kind = kAverageStatistics},
            kThisLife);
  EXPECT_NE(kept.Find(Version(5), kThisLife), nullptr);
}

TEST(KeptWeightsTest, FollowsAPush) {
  KeptWeights kept;
  kept.Take(PulledAt(5), {.weights = true}, kThisLife);
  kept.Follow(ResultAt(Verdict::kApplied, 6, "push"), kTrainableAndFrozen,
              kThisLife);
  EXPECT_EQ(kept.Find(Version(5), kThisLife), nullptr);
  ASSERT_NE(kept.Find(Version(6), kThisLife), nullptr);
  EXPECT_EQ((*kept.Find(Version(6), kThisLife))[0].ToString(), "push");
  // A step that changed nothing.
  kept.Follow(ResultAt(Verdict::kSkipped, 7, ""), kTrainableAndFrozen,
              kThisLife);
  ASSERT_NE(kept.Find(Version(7), kThisLife), nullptr);
  EXPECT_EQ((*kept.Find(Version(7), kThisLife))[0].ToString(), "push");
}

TEST(KeptWeightsTest, ForgetsWhatIsNotKnown) {
  for (const PushResult& result : {ResultAt(Verdict::kApplied, 6, ""),
                                   ResultAt(Verdict::kDropped, 5, "")}) {
    KeptWeights kept;
    kept.Take(PulledAt(5), {.weights = true}, kThisLife);
    kept.Follow(result, kTrainableAndFrozen, kThisLife);
    EXPECT_EQ(kept.Find(Version(5), kThisLife), nullptr);
    EXPECT_EQ(kept.Find(Version(6), kThisLife), nullptr);
  }
}

}  // namespace
}  // namespace cohort
