#include "common/model_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/limits.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;

ModelLayout Example() {
  return {
      .parameters = {{.name = "conv.weight", .shape = {2, 3}},
                     {.name = "bn.bias", .shape = {2}, .decay_exempt = true}},
      .batch_norms = {{.name = "bn", .channels = 2}}};
}

void ExpectInvalid(const ModelLayout& layout, const std::string& why) {
  EXPECT_THAT(Validate(layout), IsError(kInvalidArgument, why));
}

void ExpectDiffers(const ModelLayout& seen, const std::string& what) {
  EXPECT_THAT(CheckSameLayout(seen, Example()),
              IsError(kFailedPrecondition, what));
}

TEST(ModelLayoutTest, ElementsAreTheProductOfTheShape) {
  EXPECT_EQ(ElementCount({.name = "w", .shape = {2, 3, 5}}), 30);
  EXPECT_EQ(ElementCount({.name = "scalar"}), 1);
}

TEST(ModelLayoutTest, AcceptsAValidLayout) {
  EXPECT_TRUE(Validate(Example()).ok());
}

TEST(ModelLayoutTest, RefusesNoParameters) {
  ExpectInvalid({}, "no parameters");
}

TEST(ModelLayoutTest, RefusesAParameterWithoutName) {
  ModelLayout layout = Example();
  layout.parameters[1].name.clear();
  ExpectInvalid(layout, "parameter number 1 has no name");
}

TEST(ModelLayoutTest, RefusesARepeatedName) {
  ModelLayout layout = Example();
  layout.parameters[1].name = "conv.weight";
  ExpectInvalid(layout, "parameter conv.weight appears twice");
}

TEST(ModelLayoutTest, RefusesAnExtentOfZero) {
  ModelLayout layout = Example();
  layout.parameters[0].shape = {2, 0};
  ExpectInvalid(layout, "conv.weight: got shape [2,0]");
}

TEST(ModelLayoutTest, RefusesAShapeWhoseProductOverflows) {
  ModelLayout layout = Example();
  layout.parameters[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  ExpectInvalid(layout, "conv.weight: got shape");
}

TEST(ModelLayoutTest, RefusesParametersThatAreTooLargeTogether) {
  ModelLayout layout = Example();
  layout.parameters[0].shape = {int64_t{1} << 40};
  ExpectInvalid(layout, "the model has more than");
}

TEST(ModelLayoutTest, RefusesBatchNormOutOfRange) {
  ModelLayout layout = Example();
  layout.batch_norms[0].channels = 0;
  ExpectInvalid(layout, "bn: got 0 channels");
  layout = Example();
  layout.batch_norms[0].epsilon = 0;
  ExpectInvalid(layout, "bn: got epsilon 0");
  layout.batch_norms[0].epsilon = std::nan("");
  ExpectInvalid(layout, "bn: got epsilon nan");
  layout = Example();
  layout.batch_norms[0].momentum = 1.5;
  ExpectInvalid(layout, "bn: got momentum 1.5");
}

TEST(ModelLayoutTest, EqualLayoutsAreTheSame) {
  EXPECT_TRUE(CheckSameLayout(Example(), Example()).ok());
}

TEST(ModelLayoutTest, TellsTheFirstDifference) {
  const auto expect = [](auto change, const std::string& why) {
    ModelLayout seen = Example();
    change(seen);
    ExpectDiffers(seen, why);
  };
  expect(
      [](auto& l) {
        l.parameters[0].shape = {3, 2};
      },
      "conv.weight: got shape [3,2], want [2,3]");
  expect([](auto& l) { l.parameters[1].trainable = false; },
         "bn.bias: got trainable no, want yes");
  expect([](auto& l) { l.parameters[1].decay_exempt = false; },
         "bn.bias: got decay_exempt no, want yes");
  expect([](auto& l) { l.parameters[0].rate_multiplier = 10; },
         "conv.weight: got a rate multiplier of 10, want 1");
  expect([](auto& l) { l.parameters[0].decay_multiplier = 0.5; },
         "conv.weight: got a decay multiplier of 0.5, want 1");
  expect([](auto& l) { l.parameters[0].name = "conv1.weight"; },
         "parameter number 0: got conv1.weight, want conv.weight");
  expect(
      [](auto& l) {
        l.batch_norms[0].convention = StatisticsConvention::kKeras;
      },
      "bn: affine, track_statistics or convention differ");
  expect([](auto& l) { l.parameters.pop_back(); },
         "parameter bn.bias is missing");
  expect(
      [](auto& l) { l.batch_norms.push_back({.name = "bn2", .channels = 1}); },
      "batch norm bn2 is not part of this run's model");
}

TEST(ModelLayoutTest, MomentumAndEpsilonMayDiffer) {
  ModelLayout seen = Example();
  seen.batch_norms[0].momentum.reset();
  seen.batch_norms[0].epsilon = 0.5;
  EXPECT_TRUE(CheckSameLayout(seen, Example()).ok());
  seen.batch_norms[0].momentum = 0;
  EXPECT_TRUE(Validate(seen).ok());
}

TEST(ModelLayoutTest, ReadersNeedNotKnowHowParametersLearn) {
  ModelLayout seen = Example();
  seen.parameters[0].rate_multiplier = 10;
  seen.parameters[0].decay_multiplier = 0.5;
  seen.parameters[1].decay_exempt = false;
  EXPECT_TRUE(CheckReadable(seen, Example()).ok());
  seen.parameters[0].shape = {3, 2};
  EXPECT_FALSE(CheckReadable(seen, Example()).ok());
}

TEST(ModelLayoutTest, RefusesMultipliersThatAreNoFactors) {
  for (const double factor : {-1.0, std::nan(""), HUGE_VAL}) {
    ModelLayout layout = Example();
    layout.parameters[0].rate_multiplier = factor;
    ExpectInvalid(layout, "conv.weight: got a rate multiplier of ");
    layout = Example();
    layout.parameters[1].decay_multiplier = factor;
    ExpectInvalid(layout, "bn.bias: got a decay multiplier of ");
  }
}

TEST(ModelLayoutTest, RateGroupsAreCountedAndCompared) {
  ModelLayout layout = Example();
  EXPECT_EQ(RateGroups(layout), 1);
  EXPECT_EQ(RateGroups({}), 0);
  layout.parameters[0].rate_group = 4;
  EXPECT_TRUE(Validate(layout).ok());
  // Groups that no parameter is in have a rate, too.
  EXPECT_EQ(RateGroups(layout), 5);
  ExpectDiffers(layout, "conv.weight: got rate group 4, want 0");
  layout.parameters[0].rate_group = -1;
  ExpectInvalid(layout, "conv.weight: got rate group -1, want 0 to 1023");
  layout.parameters[0].rate_group = limits::kRateGroupsMax;
  ExpectInvalid(layout, "conv.weight: got rate group 1024, want 0 to 1023");
}

TEST(MakePartitionsTest, LargeParametersSpanAndSmallOnesShare) {
  // 6 and 2 elements at 4 a partition: [w 0..4] [w 4..6, b 0..2].
  const std::vector<Partition> partitions = MakePartitions(Example(), 16);
  ASSERT_EQ(partitions.size(), 2u);
  EXPECT_THAT(partitions[0].slices, ElementsAre(Slice{0, 0, 4}));
  EXPECT_THAT(partitions[1].slices,
              ElementsAre(Slice{0, 4, 2}, Slice{1, 0, 2}));
  EXPECT_EQ(partitions[0].elements, 4);
  EXPECT_EQ(partitions[1].elements, 4);
}

TEST(MakePartitionsTest, FrozenAndTrainableNeverMix) {
  ModelLayout layout = Example();
  layout.parameters[0].trainable = false;
  const std::vector<Partition> partitions = MakePartitions(layout, 1 << 20);
  ASSERT_EQ(partitions.size(), 2u);
  EXPECT_FALSE(partitions[0].trainable);
  EXPECT_THAT(partitions[0].slices, ElementsAre(Slice{0, 0, 6}));
  EXPECT_TRUE(partitions[1].trainable);
  EXPECT_THAT(partitions[1].slices, ElementsAre(Slice{1, 0, 2}));
}

TEST(MakePartitionsTest, HoldsAtLeastOneElement) {
  EXPECT_EQ(MakePartitions(Example(), 1).size(), 8u);
}

TEST(MakePartitionsTest, CoversEveryElementOnceAtAnySize) {
  for (int64_t target_bytes = 1; target_bytes <= 40; ++target_bytes) {
    std::vector<int64_t> next = {0, 0};
    for (const Partition& p : MakePartitions(Example(), target_bytes)) {
      int64_t elements = 0;
      for (const Slice& s : p.slices) {
        auto& offset = next[static_cast<size_t>(s.parameter)];
        EXPECT_EQ(s.offset, offset);
        offset += s.count;
        elements += s.count;
      }
      EXPECT_EQ(elements, p.elements);
      EXPECT_LE(p.elements * 4, std::max<int64_t>(4, target_bytes));
    }
    EXPECT_THAT(next, ElementsAre(6, 2)) << target_bytes << " bytes";
  }
}

TEST(RunPlanTest, ComparesEverythingButTheLossReference) {
  const RunPlan wanted = {
      .dataset = "mnist",
      .dataset_digest = "ab",
      .train_samples = 10,
      .test_samples = 2,
      .loss = "cross-entropy",
      .optimizer = {{"learning_rate", "0.1"}, {"optimizer", "sgd"}}};
  RunPlan same = wanted;
  same.loss_reference = 7;
  EXPECT_TRUE(CheckSamePlan(same, wanted).ok());
  const auto differs = [&wanted](auto change, const std::string& why) {
    RunPlan seen = wanted;
    change(seen);
    EXPECT_THAT(CheckSamePlan(seen, wanted), IsError(kFailedPrecondition, why));
  };
  differs([](auto& p) { p.dataset_digest = "cd"; }, "digest cd, want ab");
  differs([](auto& p) { p.test_samples = 3; }, "samples 3, want 2");
  differs([](auto& p) { p.loss = "label smoothing 0.1"; }, "smoothing 0.1");
  differs([](auto& p) { p.own_data = true; }, "own yes, want no");
  differs([](auto& p) { p.awaits_scores = true; }, "epoch yes, want no");
  differs([](auto& p) { p.rates_by_workers = true; }, "workers yes, want no");
  differs([](auto& p) { p.optimizer["learning_rate"] = "0.2"; },
          "optimizer: got learning_rate 0.2, want 0.1");
  differs([](auto& p) { p.optimizer.erase("optimizer"); },
          "optimizer: got optimizer none, want sgd");
  differs([](auto& p) { p.optimizer["momentum"] = "0.9"; },
          "optimizer: got momentum 0.9, want none");
}

TEST(InitialStatisticsTest, AreMeanZeroVarianceOneNothingTracked) {
  const std::vector<LayerStatistics> statistics = InitialStatistics(Example());
  ASSERT_EQ(statistics.size(), 1u);
  EXPECT_THAT(statistics[0].mean, ElementsAre(0, 0));
  EXPECT_THAT(statistics[0].variance, ElementsAre(1, 1));
  EXPECT_EQ(statistics[0].num_batches_tracked, 0);
}

}  // namespace
}  // namespace cohort
