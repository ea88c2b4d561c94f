#include "server/core/statistics/local_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "worker/batch_norm/local_moments.h"

namespace cohort {
namespace {

// Batches of one layer with one channel, by update and rank.
using Batches = std::vector<std::vector<std::vector<double>>>;

Batches Draw(size_t updates, size_t ranks, size_t values) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  Batches batches(updates);
  for (size_t u = 0; u < updates; ++u) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      std::vector<double>& batch = batches[u].emplace_back();
      for (size_t i = 0; i < values; ++i) {
        batch.push_back(2 * normal(random) + 0.3 * static_cast<double>(u) -
                        static_cast<double>(rank));
      }
    }
  }
  return batches;
}

struct MeanAndVariance {
  double mean = 0;
  double variance = 0;
};

// Over the values of all ranks.
MeanAndVariance Of(const std::vector<std::vector<double>>& ranks,
                   bool unbiased) {
  double sum = 0;
  double count = 0;
  for (const std::vector<double>& batch : ranks) {
    for (double x : batch) sum += x;
    count += static_cast<double>(batch.size());
  }
  MeanAndVariance of{.mean = sum / count};
  for (const std::vector<double>& batch : ranks) {
    for (double x : batch) of.variance += (x - of.mean) * (x - of.mean);
  }
  of.variance /= unbiased ? count - 1 : count;
  return of;
}

// One process with all batches, and mixture variance: the independent
// reference, in float64.
MeanAndVariance OneProcess(const Batches& batches, const BatchNormSpec& layer,
                           int64_t tracked, MeanAndVariance held) {
  const bool unbiased = layer.convention == StatisticsConvention::kPyTorch;
  for (const auto& ranks : batches) {
    const MeanAndVariance batch = Of(ranks, unbiased);
    ++tracked;
    const double a = layer.momentum.value_or(1 / static_cast<double>(tracked));
    const double off = batch.mean - held.mean;
    held.variance =
        (1 - a) * held.variance + a * batch.variance + a * (1 - a) * off * off;
    held.mean += a * off;
  }
  return held;
}

Moments MomentsOf(const std::vector<double>& batch) {
  const MeanAndVariance of = Of({batch}, false);
  const auto count = static_cast<double>(batch.size());
  return {.count = static_cast<int64_t>(batch.size()),
          .first = {of.mean},
          .second = {of.variance * count}};
}

// The statistics that the server makes of the pushes.
LayerStatistics ByPushes(const Batches& batches, const BatchNormSpec& layer,
                         LayerStatistics held) {
  const size_t ranks = batches.front().size();
  std::vector<RankMoments> pushes;
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<CallMoments> calls;
    for (const auto& update : batches) {
      calls.push_back({.call = static_cast<int32_t>(calls.size()),
                       .moments = MomentsOf(update[rank])});
    }
    pushes.push_back({.rank = Rank(static_cast<int32_t>(rank)),
                      .calls = CombineLocalSteps(
                          calls, std::vector<int32_t>(batches.size(), 1),
                          {layer}, static_cast<int64_t>(ranks))});
  }
  EXPECT_TRUE(AreOfLocalSteps(pushes));
  std::vector<LayerStatistics> statistics = {std::move(held)};
  ApplyLocalSteps(pushes, {layer}, statistics);
  return statistics.front();
}

void ExpectOneProcess(const Batches& batches, const BatchNormSpec& layer,
                      double tolerance) {
  const MeanAndVariance wanted =
      OneProcess(batches, layer, 4, {.mean = 0.5, .variance = 2});
  const LayerStatistics seen =
      ByPushes(batches, layer,
               {.mean = {0.5}, .variance = {2}, .num_batches_tracked = 4});
  // Values are float32.
  EXPECT_NEAR(seen.mean[0], wanted.mean, 1e-6);
  EXPECT_NEAR(seen.variance[0], wanted.variance, tolerance);
  EXPECT_EQ(seen.num_batches_tracked, 4 + static_cast<int64_t>(batches.size()));
}

BatchNormSpec Layer(std::optional<double> momentum,
                    StatisticsConvention convention) {
  return {.name = "bn",
          .channels = 1,
          .momentum = momentum,
          .convention = convention};
}

TEST(LocalStatisticsTest, OneRankMovesThemAsOneProcess) {
  for (const auto convention :
       {StatisticsConvention::kPyTorch, StatisticsConvention::kKeras}) {
    for (const std::optional<double> momentum :
         {std::optional<double>(0.1), std::optional<double>(0.9),
          std::optional<double>(1), std::optional<double>()}) {
      for (size_t updates : {1, 2, 7}) {
        ExpectOneProcess(Draw(updates, 1, 5), Layer(momentum, convention),
                         2e-6);
      }
    }
  }
}

TEST(LocalStatisticsTest, SeveralRanksMoveThemAsOneProcess) {
  const Batches batches = Draw(5, 3, 6);
  for (const std::optional<double> momentum :
       {std::optional<double>(0.1), std::optional<double>()}) {
    ExpectOneProcess(batches, Layer(momentum, StatisticsConvention::kKeras),
                     2e-6);
    // The spread of the ranks' means, about 1, misses its factor 18/17.
    ExpectOneProcess(batches, Layer(momentum, StatisticsConvention::kPyTorch),
                     0.07);
  }
}

// Unlike moments that count all steps alike.
TEST(LocalStatisticsTest, LaterStepsWeighMore) {
  const Batches batches = {{{0, 0}}, {{1, 1}}};
  const BatchNormSpec layer = Layer(0.5, StatisticsConvention::kKeras);
  const LayerStatistics seen =
      ByPushes(batches, layer, {.mean = {0}, .variance = {0}});
  EXPECT_EQ(seen.mean[0], 0.5);
}

// Momentum 0 counts, and moves nothing.
TEST(LocalStatisticsTest, MomentumZeroOnlyCounts) {
  const LayerStatistics held{.mean = {3}, .variance = {2}};
  const LayerStatistics seen =
      ByPushes(Draw(3, 2, 4), Layer(0, StatisticsConvention::kPyTorch), held);
  EXPECT_EQ(seen.mean, held.mean);
  EXPECT_EQ(seen.variance, held.variance);
  EXPECT_EQ(seen.num_batches_tracked, 3);
}

// The second part had no samples here: the first call is two updates old.
TEST(LocalStatisticsTest, APartWithoutSamplesAgesTheCallsBefore) {
  const std::vector<CallMoments> combined = CombineLocalSteps(
      {{.moments = {.count = 2, .first = {1}, .second = {0}}}}, {1, 0},
      {Layer(0.5, StatisticsConvention::kKeras)}, 1);
  ASSERT_EQ(combined.size(), 1);
  EXPECT_EQ(combined[0].updates, 2);
  EXPECT_EQ(combined[0].weight, 2 * 0.5 * 0.5);
}

TEST(LocalStatisticsTest, LayersAreIndependent) {
  const std::vector<BatchNormSpec> layers = {
      Layer(0.1, StatisticsConvention::kKeras),
      Layer(0.1, StatisticsConvention::kKeras)};
  const std::vector<CallMoments> combined = CombineLocalSteps(
      {{.layer = 1,
        .call = 0,
        .moments = {.count = 2, .first = {1}, .second = {4}}},
       {.layer = 1,
        .call = 1,
        .moments = {.count = 2, .first = {1}, .second = {4}}}},
      {0, 1, 0, 1}, layers, 2);
  ASSERT_EQ(combined.size(), 1);
  EXPECT_EQ(combined[0].layer, 1);
  EXPECT_EQ(combined[0].moments.count, 4);
  std::vector<LayerStatistics> statistics(2, {.mean = {0}, .variance = {1}});
  const std::vector<RankMoments> pushes = {{.calls = combined}};
  ApplyLocalSteps(pushes, layers, statistics);
  EXPECT_EQ(statistics[0].num_batches_tracked, 0);
  EXPECT_EQ(statistics[1].num_batches_tracked, 2);
}

}  // namespace
}  // namespace cohort
