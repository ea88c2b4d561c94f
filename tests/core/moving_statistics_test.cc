#include "server/core/moving_statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

// {1, 2, 3} and {4, 8}; together: mean 18/5 = 3.6, M2 = 29.2.
const Moments kFirst{.count = 3, .first = {2}, .second = {2}};
const Moments kSecond{.count = 2, .first = {6}, .second = {8}};

RankMoments Of(int32_t rank, int64_t samples, const Moments& moments) {
  return {.rank = Rank(rank),
          .samples = samples,
          .calls = {{.layer = 0, .call = 0, .moments = moments}}};
}

BatchNormSpec Layer(
    StatisticsConvention convention = StatisticsConvention::kPyTorch) {
  return {.name = "bn", .channels = 1, .convention = convention};
}

std::vector<LayerStatistics> Fresh() {
  return {{.mean = {0}, .variance = {1}}};
}

TEST(MovingStatisticsTest, PyTorchKeepsTheUnbiasedVarianceOfAllRanks) {
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 3, kFirst), Of(1, 2, kSecond)}, 5, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], 0.1 * 3.6);
  EXPECT_DOUBLE_EQ(statistics[0].variance[0], 0.9 + 0.1 * 29.2 / 4);
  EXPECT_EQ(statistics[0].num_batches_tracked, 1);
}

TEST(MovingStatisticsTest, KerasKeepsTheBiasedVariance) {
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer(StatisticsConvention::kKeras)})
      .ApplyStep({Of(0, 3, kFirst), Of(1, 2, kSecond)}, 5, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].variance[0], 0.9 + 0.1 * 29.2 / 5);
}

TEST(MovingStatisticsTest, CumulativeOverwritesTheInitialValuesThenAverages) {
  BatchNormSpec layer = Layer();
  layer.momentum = std::nullopt;
  const MovingStatistics moving(StatisticsKind::kSync, {layer});
  std::vector<LayerStatistics> statistics = Fresh();
  moving.ApplyStep({Of(0, 3, kFirst)}, 3, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], 2);
  EXPECT_DOUBLE_EQ(statistics[0].variance[0], 1);
  moving.ApplyStep({Of(0, 2, kSecond)}, 3, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], (2 + 6) / 2.0);
  EXPECT_DOUBLE_EQ(statistics[0].variance[0], (1 + 8) / 2.0);
  EXPECT_EQ(statistics[0].num_batches_tracked, 2);
}

TEST(MovingStatisticsTest, ChiefUsesTheFirstRankOnly) {
  const MovingStatistics moving(StatisticsKind::kChief, {Layer()});
  std::vector<LayerStatistics> statistics = Fresh();
  moving.ApplyStep({Of(2, 2, kSecond), Of(3, 3, kFirst)}, 5, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], 0.6);
  EXPECT_DOUBLE_EQ(statistics[0].variance[0], 0.9 + 0.1 * 8);
  const std::vector<LayerStatistics> before = statistics;
  moving.ApplyPush(Of(3, 3, kFirst), Rank(2), 5, statistics);
  EXPECT_EQ(statistics, before);
  moving.ApplyPush(Of(2, 3, kFirst), Rank(2), 5, statistics);
  EXPECT_NE(statistics, before);
}

// Four pushes of a quarter each, all with mean 3 and biased variance 2 over 10
// elements, against one step of 40 such elements.
TEST(MovingStatisticsTest, PushesOfAShareDecayLikeOneSynchronousStep) {
  const Moments quarter{.count = 10, .first = {3}, .second = {20}};
  const Moments whole{.count = 40, .first = {3}, .second = {80}};
  std::vector<LayerStatistics> pushed = Fresh();
  const MovingStatistics async(StatisticsKind::kAsync, {Layer()});
  for (int32_t rank = 0; rank < 4; ++rank) {
    async.ApplyPush(Of(rank, 2, quarter), Rank(0), 8, pushed);
  }
  std::vector<LayerStatistics> stepped = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 8, whole)}, 8, stepped);
  // Rounding of pow and of four products.
  EXPECT_NEAR(pushed[0].mean[0], stepped[0].mean[0], 1e-15);
  EXPECT_NEAR(pushed[0].variance[0], stepped[0].variance[0], 1e-15);
  EXPECT_NEAR(stepped[0].variance[0], 0.9 + 0.1 * 80 / 39.0, 1e-15);
}

TEST(MovingStatisticsTest, APushOfAWholeStepIsThatStepToTheBit) {
  std::vector<LayerStatistics> pushed = Fresh();
  MovingStatistics(StatisticsKind::kAsync, {Layer()})
      .ApplyPush(Of(0, 3, kFirst), Rank(0), 3, pushed);
  std::vector<LayerStatistics> stepped = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 3, kFirst)}, 3, stepped);
  EXPECT_EQ(pushed, stepped);
}

TEST(MovingStatisticsTest, OneElementKeepsTheUnbiasedVariance) {
  const Moments one{.count = 1, .first = {5}, .second = {0}};
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 1, one)}, 1, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], 0.5);
  EXPECT_DOUBLE_EQ(statistics[0].variance[0], 1);
  EXPECT_EQ(statistics[0].num_batches_tracked, 1);
}

TEST(MovingStatisticsTest, NothingSeenChangesNothing) {
  const Moments none{.count = 0, .first = {0}, .second = {0}};
  std::vector<LayerStatistics> statistics = Fresh();
  const MovingStatistics moving(StatisticsKind::kSync, {Layer()});
  moving.ApplyStep({Of(0, 1, none), Of(1, 1, none)}, 2, statistics);
  EXPECT_EQ(statistics, Fresh());
  moving.ApplyStep({Of(0, 1, none), Of(1, 3, kFirst)}, 4, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], 0.2);
}

TEST(MovingStatisticsTest, UntrackedLayersStayAsTheyAre) {
  BatchNormSpec layer = Layer();
  layer.track_statistics = false;
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {layer})
      .ApplyStep({Of(0, 3, kFirst)}, 3, statistics);
  EXPECT_EQ(statistics, Fresh());
}

TEST(MovingStatisticsTest, EachCallUpdatesOnceInCallOrder) {
  const RankMoments twice{
      .rank = Rank(0),
      .samples = 3,
      .calls = {{.layer = 0, .call = 0, .moments = kFirst},
                {.layer = 0, .call = 1, .moments = kSecond}}};
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({twice}, 3, statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], 0.9 * (0.1 * 2) + 0.1 * 6);
  EXPECT_EQ(statistics[0].num_batches_tracked, 2);
}

}  // namespace
}  // namespace cohort
