#include "server/core/statistics/moving_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <random>
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
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.1 * 3.6);
  EXPECT_FLOAT_EQ(statistics[0].variance[0], 0.9 + 0.1 * 29.2 / 4);
  EXPECT_EQ(statistics[0].num_batches_tracked, 1);
}

TEST(MovingStatisticsTest, KerasKeepsTheBiasedVariance) {
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer(StatisticsConvention::kKeras)})
      .ApplyStep({Of(0, 3, kFirst), Of(1, 2, kSecond)}, 5, statistics);
  EXPECT_FLOAT_EQ(statistics[0].variance[0], 0.9 + 0.1 * 29.2 / 5);
}

TEST(MovingStatisticsTest, CumulativeOverwritesTheInitialValuesThenAverages) {
  BatchNormSpec layer = Layer();
  layer.momentum = std::nullopt;
  const MovingStatistics moving(StatisticsKind::kSync, {layer});
  std::vector<LayerStatistics> statistics = Fresh();
  moving.ApplyStep({Of(0, 3, kFirst)}, 3, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 2);
  EXPECT_FLOAT_EQ(statistics[0].variance[0], 1);
  moving.ApplyStep({Of(0, 2, kSecond)}, 3, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], (2 + 6) / 2.0);
  EXPECT_FLOAT_EQ(statistics[0].variance[0], (1 + 8) / 2.0);
  EXPECT_EQ(statistics[0].num_batches_tracked, 2);
}

TEST(MovingStatisticsTest, ChiefUsesTheFirstRankOnly) {
  const MovingStatistics moving(StatisticsKind::kChief, {Layer()});
  std::vector<LayerStatistics> statistics = Fresh();
  moving.ApplyStep({Of(2, 2, kSecond), Of(3, 3, kFirst)}, 5, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.6);
  EXPECT_FLOAT_EQ(statistics[0].variance[0], 0.9 + 0.1 * 8);
  const std::vector<LayerStatistics> before = statistics;
  moving.ApplyPush(Of(3, 3, kFirst), Rank(2), 5, statistics);
  EXPECT_EQ(statistics, before);
  moving.ApplyPush(Of(2, 3, kFirst), Rank(2), 5, statistics);
  EXPECT_NE(statistics, before);
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
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.5);
  EXPECT_FLOAT_EQ(statistics[0].variance[0], 1);
  EXPECT_EQ(statistics[0].num_batches_tracked, 1);
}

TEST(MovingStatisticsTest, NothingSeenChangesNothing) {
  const Moments none{.count = 0, .first = {0}, .second = {0}};
  std::vector<LayerStatistics> statistics = Fresh();
  const MovingStatistics moving(StatisticsKind::kSync, {Layer()});
  moving.ApplyStep({Of(0, 1, none), Of(1, 1, none)}, 2, statistics);
  EXPECT_EQ(statistics, Fresh());
  moving.ApplyStep({Of(0, 1, none), Of(1, 3, kFirst)}, 4, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.2);
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
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.9 * (0.1 * 2) + 0.1 * 6);
  EXPECT_EQ(statistics[0].num_batches_tracked, 2);
}

// Two passes over all values.
Moments TwoPassMomentsOf(const std::vector<double>& values) {
  Moments moments{.count = static_cast<int64_t>(values.size()),
                  .first = {0},
                  .second = {0}};
  const auto n = static_cast<double>(values.size());
  for (double x : values) moments.first[0] += x / n;
  for (double x : values) {
    moments.second[0] += (x - moments.first[0]) * (x - moments.first[0]);
  }
  return moments;
}

std::vector<double> Draw(std::mt19937_64& random, double mean) {
  std::normal_distribution<double> normal(mean, 2);
  std::vector<double> values(10);
  for (double& x : values) x = normal(random);
  return values;
}

// Fifty steps in which W workers see the same batch, each a W-th of a nominal
// step, against one worker's synchronous step. The rule is exact; 1e-12 is
// the rounding of pow and of W products a step, far below the 1e-6 promised.
TEST(MovingStatisticsTest, WorkersWithTheSameDataAreTheSynchronousAverage) {
  for (int32_t workers = 1; workers <= 8; ++workers) {
    std::mt19937_64 random(3);
    const MovingStatistics async(StatisticsKind::kAsync, {Layer()});
    const MovingStatistics sync(StatisticsKind::kSync, {Layer()});
    std::vector<LayerStatistics> pushed = Fresh();
    std::vector<LayerStatistics> stepped = Fresh();
    for (int step = 0; step < 50; ++step) {
      const Moments part = TwoPassMomentsOf(Draw(random, step % 7));
      std::vector<RankMoments> ranks;
      for (int32_t rank = 0; rank < workers; ++rank) {
        ranks.push_back(Of(rank, 4, part));
        async.ApplyPush(ranks.back(), Rank(0), 4 * workers, pushed);
      }
      sync.ApplyStep(ranks, 4 * workers, stepped);
    }
    EXPECT_NEAR(pushed[0].mean[0], stepped[0].mean[0], 1e-6) << workers;
    EXPECT_NEAR(pushed[0].variance[0], stepped[0].variance[0], 1e-6) << workers;
  }
}

// Eight workers; each push is a whole step with a = 0.9, so that N*a is 7.2.
// All pushes were computed from the same weights. If updates read before the
// others wrote, they would add up to r <- r + sum a(m_k - r); the last loop
// shows that this diverges.
TEST(MovingStatisticsTest, RacingPushesStayBounded) {
  BatchNormSpec layer = Layer();
  layer.momentum = 0.9;
  const MovingStatistics moving(StatisticsKind::kAsync, {layer});
  std::vector<LayerStatistics> statistics = Fresh();
  double lockless = 0;
  for (int round = 0; round < 100; ++round) {
    double change = 0;
    for (int32_t rank = 0; rank < 8; ++rank) {
      const double mean = (round + rank) % 2 == 0 ? 1 : -0.5;
      const Moments m{.count = 5, .first = {mean}, .second = {12}};
      moving.ApplyPush(Of(rank, 6, m), Rank(0), 6, statistics);
      change += 0.9 * (mean - lockless);
      // Between all values held and seen: mean 0, -0.5 and 1; variance 1 and
      // 12/4.
      ASSERT_GE(statistics[0].mean[0], -0.5);
      ASSERT_LE(statistics[0].mean[0], 1);
      ASSERT_GE(statistics[0].variance[0], 1);
      ASSERT_LE(statistics[0].variance[0], 3);
    }
    lockless += change;
  }
  EXPECT_GT(std::abs(lockless), 1e6);
}

// The weight of a stale push multiplies a_k: 0.1 * 0.5 of {1, 2, 3}.
TEST(MovingStatisticsTest, AStalePushCountsByItsWeight) {
  std::vector<LayerStatistics> statistics = Fresh();
  const MovingStatistics moving(StatisticsKind::kAsync, {Layer()});
  RankMoments push = Of(0, 3, kFirst);
  push.weight = 0.5;
  moving.ApplyPush(push, Rank(0), 3, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.05 * 2);
  EXPECT_FLOAT_EQ(statistics[0].variance[0], 0.95 + 0.05 * 1);
  push.weight = 0;
  const std::vector<double> before = statistics[0].mean;
  moving.ApplyPush(push, Rank(0), 3, statistics);
  EXPECT_EQ(statistics[0].mean, before);
}

TEST(MovingStatisticsTest, AStaleFirstBatchOverwritesACumulativeAverage) {
  BatchNormSpec layer = Layer();
  layer.momentum = std::nullopt;
  const MovingStatistics moving(StatisticsKind::kAsync, {layer});
  std::vector<LayerStatistics> statistics = Fresh();
  RankMoments push = Of(0, 3, kFirst);
  push.weight = 0.5;
  moving.ApplyPush(push, Rank(0), 3, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 2);
  push.calls[0].moments = kSecond;
  moving.ApplyPush(push, Rank(0), 3, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.75 * 2 + 0.25 * 6);
}

// Held: the moments of 30 values. Arriving: 10 more, with another mean. With a
// = 1/4 the mixture is that of all 40 values.
TEST(MovingStatisticsTest, MixtureVarianceIsThatOfTheConcatenation) {
  std::mt19937_64 random(5);
  std::vector<double> held;
  for (double mean : {0.0, 0.0, 3.0}) {
    for (double x : Draw(random, mean)) held.push_back(x);
  }
  const std::vector<double> batch = Draw(random, -40);
  std::vector<double> all = held;
  all.insert(all.end(), batch.begin(), batch.end());
  const Moments before = TwoPassMomentsOf(held);
  const Moments wanted = TwoPassMomentsOf(all);

  BatchNormSpec layer = Layer(StatisticsConvention::kKeras);
  layer.momentum = 0.25;
  for (bool mixture : {true, false}) {
    std::vector<LayerStatistics> statistics = {
        {.mean = before.first, .variance = {before.second[0] / 30}}};
    MovingStatistics(StatisticsKind::kSync, {layer}, mixture)
        .ApplyStep({Of(0, 10, TwoPassMomentsOf(batch))}, 10, statistics);
    EXPECT_NEAR(statistics[0].mean[0], wanted.first[0], 1e-6);
    const double error =
        std::abs(statistics[0].variance[0] - wanted.second[0] / 40);
    // Without this term the distance of the means, 41^2 * 3/16, is missing.
    if (mixture) {
      EXPECT_LT(error, 1e-5 * wanted.second[0]);
    } else {
      EXPECT_GT(error, 100);
    }
  }
}

// A cumulative average weighs equal batches equally, so the mixture is the
// whole stream.
TEST(MovingStatisticsTest, CumulativeMixtureVarianceIsThatOfTheWholeStream) {
  std::mt19937_64 random(11);
  BatchNormSpec layer = Layer(StatisticsConvention::kKeras);
  layer.momentum = std::nullopt;
  const MovingStatistics moving(StatisticsKind::kSync, {layer}, true);
  std::vector<LayerStatistics> statistics = Fresh();
  std::vector<double> all;
  for (int step = 0; step < 60; ++step) {
    const std::vector<double> batch = Draw(random, 100 + step * step % 13);
    all.insert(all.end(), batch.begin(), batch.end());
    moving.ApplyStep({Of(0, 10, TwoPassMomentsOf(batch))}, 10, statistics);
  }
  const Moments wanted = TwoPassMomentsOf(all);
  EXPECT_NEAR(statistics[0].mean[0], wanted.first[0], 1e-4);
  EXPECT_NEAR(statistics[0].variance[0], wanted.second[0] / 600, 1e-4);
}

TEST(MovingStatisticsTest, AfterIsNotTouchedByTraining) {
  const MovingStatistics moving(StatisticsKind::kAfter, {Layer()});
  std::vector<LayerStatistics> statistics = Fresh();
  moving.ApplyStep({Of(0, 3, kFirst)}, 3, statistics);
  moving.ApplyPush(Of(0, 3, kFirst), Rank(0), 3, statistics);
  EXPECT_EQ(statistics, Fresh());
}

// ---- the modules' settings

TrainingCall Told(int32_t call, std::optional<double> momentum) {
  return {.call = call, .momentum = momentum, .epsilon = 1e-5};
}

CombinedMoments Met(const std::vector<Moments>& calls) {
  CombinedMoments met;
  for (size_t i = 0; i < calls.size(); ++i) {
    met.push_back({.place = {.call = static_cast<int32_t>(i)},
                   .moments = std::make_shared<const Moments>(calls[i])});
  }
  return met;
}

TEST(MovingStatisticsTest, EachCallHasTheMomentumOfItsModule) {
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 3, kFirst)}, 3, statistics, Met({kFirst, kSecond}),
                 {{.calls = {Told(0, 0.5), Told(1, std::nullopt)}}});
  // 0 -> 1, then a = 1/2 with the second batch.
  EXPECT_FLOAT_EQ(statistics[0].mean[0], (1 + 6) / 2.0);
  EXPECT_EQ(statistics[0].num_batches_tracked, 2);
}

TEST(MovingStatisticsTest, ACallMayMoveOrCountNothing) {
  std::vector<LayerStatistics> statistics = Fresh();
  TrainingCall first = Told(0, 0.5);
  first.moves = false;
  TrainingCall second = Told(1, 0.5);
  second.counts = false;
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 3, kFirst)}, 3, statistics, Met({kFirst, kSecond}),
                 {{.calls = {first, second}}});
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 0.5 * 6);
  EXPECT_EQ(statistics[0].num_batches_tracked, 1);
}

TEST(MovingStatisticsTest, WrittenValuesReplaceThoseBeforeTheirCall) {
  std::vector<LayerStatistics> statistics = Fresh();
  const LayerStatistics written{
      .mean = {10}, .variance = {4}, .num_batches_tracked = 7};
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 3, kFirst)}, 3, statistics, Met({kFirst, kSecond}),
                 {{.calls = {Told(0, 0.5), Told(1, 0.5)},
                   .writes = {{.after_calls = 1, .values = written}}}});
  EXPECT_FLOAT_EQ(statistics[0].mean[0], (10 + 6) / 2.0);
  EXPECT_EQ(statistics[0].num_batches_tracked, 8);
}

TEST(MovingStatisticsTest, ValuesAreThoseOfFloat32) {
  std::vector<LayerStatistics> statistics = Fresh();
  MovingStatistics(StatisticsKind::kSync, {Layer()})
      .ApplyStep({Of(0, 3, kFirst), Of(1, 2, kSecond)}, 5, statistics);
  const double mean = statistics[0].mean[0];
  EXPECT_EQ(mean, static_cast<double>(static_cast<float>(mean)));
}

TEST(MovingStatisticsTest, AMomentumOfThePushIsThatOfItsUpdate) {
  std::vector<LayerStatistics> statistics = Fresh();
  RankMoments push = Of(0, 3, kFirst);
  push.changes = {{.calls = {Told(0, 0.5)}}};
  MovingStatistics(StatisticsKind::kAsync, {Layer()})
      .ApplyPush(push, Rank(0), 3, statistics);
  EXPECT_FLOAT_EQ(statistics[0].mean[0], 1);
}

}  // namespace
}  // namespace cohort
