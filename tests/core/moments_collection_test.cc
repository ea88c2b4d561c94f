#include "server/core/evaluation/moments_collection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace cohort {
namespace {

using testing::ElementsAre;
using Shard = MomentsCollection::Shard;

CollectionPlan PlanOf(bool global) {
  return {.train_samples = 9,
          .batch_sizes = {3, 1},
          .global_normalization = global,
          .batches_max = 200};
}

TEST(CollectionBatchesTest, AreTheStepsUnderGlobalNormalization) {
  EXPECT_THAT(CollectionBatches(PlanOf(true)),
              ElementsAre(IndexRange{0, 4}, IndexRange{4, 8}));
}

TEST(CollectionBatchesTest, AreTheRanksOwnUnderLocalNormalization) {
  EXPECT_THAT(CollectionBatches(PlanOf(false)),
              ElementsAre(IndexRange{0, 3}, IndexRange{3, 4}, IndexRange{4, 7},
                          IndexRange{7, 8}));
}

TEST(CollectionBatchesTest, AreTheGroupsWhereGroupsNormalise) {
  CollectionPlan plan = PlanOf(true);
  plan.batch_sizes = {1, 2, 1};
  plan.group_size = 2;
  EXPECT_THAT(CollectionBatches(plan),
              ElementsAre(IndexRange{0, 3}, IndexRange{3, 4}, IndexRange{4, 7},
                          IndexRange{7, 8}));
}

TEST(CollectionBatchesTest, AreAtMostAsManyAsAskedFor) {
  CollectionPlan plan = PlanOf(false);
  plan.batches_max = 3;
  EXPECT_EQ(CollectionBatches(plan).size(), 3);
}

TEST(CollectionBatchesTest, AShortBatchIsBetterThanNone) {
  CollectionPlan plan = PlanOf(true);
  plan.train_samples = 2;
  EXPECT_THAT(CollectionBatches(plan), ElementsAre(IndexRange{0, 2}));
}

SharedVersion Snapshot(int64_t version) {
  auto snapshot = std::make_shared<ModelVersion>();
  snapshot->version = Version(version);
  return snapshot;
}

std::vector<IndexRange> Batches(int64_t count) {
  std::vector<IndexRange> batches;
  for (int64_t i = 0; i < count; ++i) batches.push_back({i, i + 1});
  return batches;
}

CallMoments Call(int32_t layer, int32_t call, const Moments& moments) {
  return {.layer = layer, .call = call, .moments = moments};
}

std::vector<LayerStatistics> Fresh(size_t layers) {
  return std::vector<LayerStatistics>(layers, {.mean = {0}, .variance = {1}});
}

// Two passes in extended precision.
Moments ExactMomentsOf(const std::vector<double>& values) {
  long double sum = 0;
  for (double x : values) sum += x;
  const long double mean =
      values.empty() ? 0 : sum / static_cast<long double>(values.size());
  long double m2 = 0;
  for (double x : values) m2 += (x - mean) * (x - mean);
  return {.count = static_cast<int64_t>(values.size()),
          .first = {static_cast<double>(mean)},
          .second = {static_cast<double>(m2)}};
}

constexpr int64_t kBatches = 37;
constexpr size_t kLayers = 3;

// Activations of 37 batches: layer 0 far from zero, so that raw moments would
// cancel; layer 1 called twice a batch; layer 2 with batches whose means
// differ.
struct Activations {
  // By batch: the calls, ascending.
  std::vector<std::vector<CallMoments>> reports;
  // By layer: all values.
  std::vector<std::vector<double>> all =
      std::vector<std::vector<double>>(kLayers);

  Activations() {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    reports.resize(kBatches);
    for (int64_t batch = 0; batch < kBatches; ++batch) {
      const auto draw = [&](int32_t layer, int32_t call, double mean) {
        std::vector<double> values(static_cast<size_t>(8 + batch % 5));
        for (double& x : values) x = mean + normal(random);
        reports[static_cast<size_t>(batch)].push_back(
            Call(layer, call, ExactMomentsOf(values)));
        std::vector<double>& layer_all = all[static_cast<size_t>(layer)];
        layer_all.insert(layer_all.end(), values.begin(), values.end());
      };
      draw(0, 0, 1e4);
      draw(1, 0, 0);
      draw(1, 1, 5);
      draw(2, 0, static_cast<double>(batch));
    }
  }
};

std::vector<BatchNormSpec> Layers() {
  return std::vector<BatchNormSpec>(kLayers, {.name = "bn", .channels = 1});
}

// `workers` take batches as they become free, in an order drawn from `seed`,
// and each loses a batch now and then.
std::vector<LayerStatistics> Collect(const Activations& activations,
                                     int32_t workers, uint64_t seed) {
  std::mt19937_64 random(seed);
  MomentsCollection collection(Snapshot(3), Batches(kBatches), kLayers);
  std::vector<std::optional<Shard>> busy(static_cast<size_t>(workers));
  while (!collection.complete()) {
    const size_t w = random() % busy.size();
    if (!busy[w].has_value()) {
      busy[w] = collection.Take();
    } else if (random() % 5 == 0) {
      collection.Return(*busy[w]);
      busy[w].reset();
    } else {
      collection.Finish(
          *busy[w], Rank(static_cast<int32_t>(w)),
          activations.reports[static_cast<size_t>(busy[w]->index)]);
      busy[w].reset();
    }
  }
  std::vector<LayerStatistics> statistics = Fresh(kLayers);
  collection.Write(Layers(), statistics);
  return statistics;
}

TEST(MomentsCollectionTest, AnyShardingGivesTheSameBits) {
  const Activations activations;
  const std::vector<LayerStatistics> alone = Collect(activations, 1, 0);
  for (int32_t workers = 1; workers <= 8; ++workers) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_EQ(Collect(activations, workers, seed), alone)
          << workers << " workers, seed " << seed;
    }
  }
}

// Tolerance: as promised by the collection. Float64 rounding of 37 folds stays
// near 1e-14 of the values; float32 at any point, or raw moments at a mean of
// 1e4, would exceed it.
TEST(MomentsCollectionTest, TheFoldIsTheMomentsOfAllActivations) {
  const Activations activations;
  const std::vector<LayerStatistics> seen = Collect(activations, 3, 1);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const Moments all = ExactMomentsOf(activations.all[layer]);
    const double variance = all.second[0] / static_cast<double>(all.count - 1);
    EXPECT_NEAR(seen[layer].mean[0], all.first[0],
                1e-6 * std::max(1.0, std::abs(all.first[0])));
    EXPECT_NEAR(seen[layer].variance[0], variance, 1e-6 * variance);
    EXPECT_EQ(seen[layer].num_batches_tracked,
              layer == 1 ? 2 * kBatches : kBatches);
  }
}

// {1, 3} and {5}: mean 3, M2 8.
TEST(MomentsCollectionTest, TheVarianceIsThatOfTheLayersConvention) {
  MomentsCollection collection(Snapshot(3), Batches(2), 2);
  const Moments a{.count = 2, .first = {2}, .second = {2}};
  const Moments b{.count = 1, .first = {5}, .second = {0}};
  collection.Finish(*collection.Take(), Rank(0),
                    {Call(0, 0, a), Call(1, 0, a)});
  collection.Finish(*collection.Take(), Rank(0),
                    {Call(0, 0, b), Call(1, 0, b)});
  std::vector<LayerStatistics> statistics = Fresh(2);
  collection.Write({{.name = "bn", .channels = 1},
                    {.name = "keras",
                     .channels = 1,
                     .convention = StatisticsConvention::kKeras}},
                   statistics);
  EXPECT_DOUBLE_EQ(statistics[0].mean[0], 3);
  EXPECT_DOUBLE_EQ(statistics[0].variance[0], 8 / 2.0);
  EXPECT_DOUBLE_EQ(statistics[1].variance[0], 8 / 3.0);
}

TEST(MomentsCollectionTest, LayersWithNothingToTellStayAsTheyAre) {
  MomentsCollection collection(Snapshot(3), Batches(1), 4);
  const Moments some{.count = 2, .first = {2}, .second = {2}};
  const Moments one{.count = 1, .first = {2}, .second = {0}};
  const Moments none{.count = 0, .first = {0}, .second = {0}};
  // Layer 3 is never called.
  collection.Finish(*collection.Take(), Rank(0),
                    {Call(0, 0, some), Call(1, 0, one), Call(2, 0, none)});
  std::vector<BatchNormSpec> layers(4, {.name = "bn", .channels = 1});
  layers[0].track_statistics = false;
  std::vector<LayerStatistics> statistics = Fresh(4);
  collection.Write(layers, statistics);
  EXPECT_EQ(statistics[0], Fresh(1)[0]);
  // One element has a mean but no unbiased variance.
  EXPECT_EQ(statistics[1],
            (LayerStatistics{
                .mean = {2}, .variance = {1}, .num_batches_tracked = 1}));
  EXPECT_EQ(statistics[2], Fresh(1)[0]);
  EXPECT_EQ(statistics[3], Fresh(1)[0]);
}

TEST(MomentsCollectionTest, AReturnedBatchIsTheNextToBeTaken) {
  MomentsCollection collection(Snapshot(3), Batches(3), 1);
  const Shard lost = *collection.Take();
  collection.Return(lost);
  EXPECT_EQ(collection.Take()->index, lost.index);
  EXPECT_EQ(collection.Take()->index, 1);
}

TEST(MomentsCollectionTest, NamesTheFirstBatchThatIsNotFinite) {
  MomentsCollection collection(Snapshot(3), Batches(3), 2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Moments good{.count = 2, .first = {2}, .second = {2}};
  const Moments bad{.count = 2, .first = {nan}, .second = {2}};
  const Shard shards[] = {*collection.Take(), *collection.Take(),
                          *collection.Take()};
  collection.Finish(shards[2], Rank(0), {Call(0, 0, bad)});
  collection.Finish(shards[1], Rank(1), {Call(0, 0, good), Call(1, 0, bad)});
  EXPECT_FALSE(collection.nonfinite().has_value());
  collection.Finish(shards[0], Rank(0), {Call(0, 0, good)});
  ASSERT_TRUE(collection.nonfinite().has_value());
  EXPECT_EQ(collection.nonfinite()->rank, Rank(1));
  EXPECT_EQ(collection.nonfinite()->layer, 1);
  EXPECT_EQ(collection.nonfinite()->batch, 1);
}

}  // namespace
}  // namespace cohort
