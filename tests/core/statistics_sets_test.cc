#include "server/core/statistics/statistics_sets.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

constexpr auto kSync = StatisticsKind::kSync;
constexpr auto kAsync = StatisticsKind::kAsync;
constexpr auto kChief = StatisticsKind::kChief;
constexpr auto kAfter = StatisticsKind::kAfter;

std::vector<LayerStatistics> Layers(double mean) {
  return {{.mean = {mean}, .variance = {1}}};
}

StatisticsSets Held() {
  return {{.kind = kSync, .layers = Layers(1)},
          {.kind = kAfter, .layers = Layers(2), .collected = Version(7)}};
}

TEST(StatisticsSetsTest, AllKindsStartAlike) {
  EXPECT_EQ(StartSets({kChief, kSync}, Layers(3)),
            (StatisticsSets{{.kind = kChief, .layers = Layers(3)},
                            {.kind = kSync, .layers = Layers(3)}}));
}

TEST(StatisticsSetsTest, AKindThatIsHeldIsCarriedOverInTheNewOrder) {
  EXPECT_EQ(CarryOver(Held(), {kAfter, kSync}),
            (StatisticsSets{Held()[1], Held()[0]}));
  EXPECT_TRUE(NotHeld(Held(), {kAfter, kSync}).empty());
}

TEST(StatisticsSetsTest, AKindThatIsNotHeldStartsFromTheFirst) {
  EXPECT_EQ(CarryOver(Held(), {kChief, kAfter}),
            (StatisticsSets{{.kind = kChief, .layers = Layers(1)}, Held()[1]}));
  EXPECT_EQ(NotHeld(Held(), {kChief, kAfter}),
            std::vector<StatisticsKind>{kChief});
}

TEST(StatisticsSetsTest, AfterDescribesTheVersionItWasCollectedFrom) {
  EXPECT_TRUE(Held()[1].Describes(Version(7)));
  EXPECT_FALSE(Held()[1].Describes(Version(8)));
  EXPECT_TRUE(Held()[0].Describes(Version(8)));
  EXPECT_FALSE(StartSets({kAfter}, Layers(0))[0].Describes(Version()));
}

// Two ranks: {1, 2, 3} and {4, 8}; together mean 3.6 and M2 29.2.
TEST(StatisticsSetsTest, EachSetFollowsItsOwnRule) {
  const Moments first{.count = 3, .first = {2}, .second = {2}};
  const Moments second{.count = 2, .first = {6}, .second = {8}};
  const std::vector<RankMoments> ranks = {
      {.rank = Rank(0),
       .samples = 3,
       .calls = {{.layer = 0, .call = 0, .moments = first}}},
      {.rank = Rank(1),
       .samples = 2,
       .calls = {{.layer = 0, .call = 0, .moments = second}}}};
  PolicyOptions policy;
  policy.statistics = {kChief, kSync, kAfter, kAsync};
  const std::vector<BatchNormSpec> layers = {{.name = "bn", .channels = 1}};
  const KeptStatistics kept(policy, /*ema_decay=*/0, layers);
  StatisticsSets sets = StartSets(policy.statistics, Layers(0));
  kept.ApplyStep(ranks, 5, Version(), sets);
  EXPECT_FLOAT_EQ(sets[0].layers[0].mean[0], 0.1 * 2);
  EXPECT_FLOAT_EQ(sets[1].layers[0].mean[0], 0.1 * 3.6);
  EXPECT_EQ(sets[2].layers, Layers(0));
  EXPECT_EQ(sets[3].layers[0].num_batches_tracked, 2);

  const StatisticsSets before = sets;
  kept.ApplyPush(ranks[1], Rank(0), 5, Version(), sets);
  EXPECT_EQ(sets[0], before[0]);
  EXPECT_NE(sets[1], before[1]);
  EXPECT_EQ(sets[2], before[2]);
  EXPECT_NE(sets[3], before[3]);
}

TEST(StatisticsSetsTest, MixtureVarianceIsPassedOn) {
  PolicyOptions policy;
  policy.statistics = {kSync};
  policy.mixture_variance = true;
  const Moments far{.count = 2, .first = {10}, .second = {1}};
  StatisticsSets sets = StartSets(policy.statistics, Layers(0));
  KeptStatistics(policy, /*ema_decay=*/0, {{.name = "bn", .channels = 1}})
      .ApplyStep({{.rank = Rank(0),
                   .samples = 2,
                   .calls = {{.layer = 0, .call = 0, .moments = far}}}},
                 2, Version(), sets);
  // 0.9 * 1 + 0.1 * 1 + 0.1 * 0.9 * 10^2.
  EXPECT_NEAR(sets[0].layers[0].variance[0], 10, 1e-6);
}

}  // namespace
}  // namespace cohort
