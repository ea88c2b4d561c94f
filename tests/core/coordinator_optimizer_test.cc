// Optimizers, clipping and masks, tested through the coordinator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/optimizer_rules.h"
#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"
#include "tests/kernels/reference/optimizer_oracle.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::FloatNear;
using testing::HasSubstr;
using testing::IsEmpty;

// Mean gradients are the sums of both; w starts at {1, 2} and b at {3}.

// Loss weight 2 each, so that sums are means.
FakePush PushOfEach(std::vector<float> w, std::vector<float> b) {
  return {.w = std::move(w), .b = std::move(b), .loss_weight = 2};
}

TEST(CoordinatorOptimizerTest, ClippingWaitsForEveryPartition) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.optimizer.clip_norm = 2.5;
  StartedCohort cohort(setup);
  cohort.Clear();
  cohort.HoldFolds();
  // A gradient of norm 5: 0, 3 and 4.
  cohort.PushBoth(PushOfEach({0, 1}, {4}), PushOfEach({0, 2}, {0}));
  ASSERT_EQ(cohort.held_folds().size(), 2);
  EXPECT_EQ(cohort.held_folds()[0].pass, FoldPass::kGradient);
  EXPECT_THAT(cohort.All<command::SendWeights>(), IsEmpty());
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.RunFolds();
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  // Each partition once to each member.
  EXPECT_EQ(cohort.All<command::SendWeights>().size(), 4);
  // Rate 0.5 times half of the gradient.
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 1.25));
  EXPECT_THAT(cohort.weights(1), ElementsAre(2));
}

// All labels of a batch were ignored.
const FakePush kWeightless{.loss_weight = 0, .labels = 0};

// Decay alone would move the weights, momentum too, and Adam would count one
// update more.
TEST(CoordinatorOptimizerTest, AStepWithoutWeightLeavesWeightsAndSlots) {
  for (const kernels::OptimizerCase& c : kernels::OptimizerCases()) {
    SCOPED_TRACE(c.name());
    for (const double clip_norm : {0.0, 1.0}) {
      FakeSetup setup = Long(SmallSetup());
      setup.options.optimizer.kind = c.kind;
      setup.options.optimizer.numbers = c.numbers;
      setup.options.optimizer.clip_norm = clip_norm;
      setup.options.optimizer.weight_decay = 0.1;
      StartedCohort cohort(setup);
      cohort.PushBoth(PushOfEach({1, 1}, {1}), PushOfEach({2, 1}, {0}));
      const SharedSnapshot before = cohort.snapshot();
      cohort.PushBoth(kWeightless);
      const SharedSnapshot after = cohort.snapshot();
      ASSERT_EQ(after->version, Version(2));
      EXPECT_EQ(cohort.counter("pushes_applied"), 4);
      for (size_t p = 0; p < 2; ++p) {
        EXPECT_THAT(after->weights[p]->span(),
                    ElementsAreArray(before->weights[p]->span()));
        EXPECT_EQ(after->slots[p].updates, before->slots[p].updates);
        for (const SlotKind& slot : AllSlots()) {
          const SharedFloats& held = before->slots[p].*slot.buffer;
          const SharedFloats& seen = after->slots[p].*slot.buffer;
          ASSERT_EQ(held == nullptr, seen == nullptr) << slot.name;
          if (held == nullptr) continue;
          EXPECT_THAT(seen->span(), ElementsAreArray(held->span()));
        }
      }
      // The images were seen, so their moments count.
      EXPECT_EQ(after->statistics->front().layers[0].num_batches_tracked, 2);
      // The next step is an ordinary one.
      cohort.PushBoth(PushOfEach({1, 1}, {1}), PushOfEach({2, 1}, {0}));
      EXPECT_NE(WeightChecksums(*cohort.snapshot()), WeightChecksums(*before));
    }
  }
}

TEST(CoordinatorOptimizerTest, ARankWithoutWeightAddsNothing) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.PushBoth(kWeightless, {.w = {2, 4}, .b = {0}, .loss_weight = 4});
  // Scale 4 / 4, rate 0.5.
  EXPECT_THAT(cohort.weights(0), ElementsAre(0, 0));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3));
}

TEST(CoordinatorOptimizerTest, ANonfiniteGradientSkipsAClippedStep) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.optimizer.clip_norm = 1;
  StartedCohort cohort(setup);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  cohort.PushBoth(PushOfEach({0, 1}, {1}), PushOfEach({0, nan}, {1}));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("pushes_skipped"), 2);
  EXPECT_THAT(cohort.log(), HasSubstr("rank 1: gradient of w"));
  cohort.PushBoth(PushOfEach({0, 1}, {0}), PushOfEach({0, 0}, {0}));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 1.5));
}

TEST(CoordinatorOptimizerTest, ContinuesFromACheckpointWithTheSameBits) {
  for (const kernels::OptimizerCase& c : kernels::OptimizerCases()) {
    SCOPED_TRACE(c.name());
    FakeSetup setup = Long(SmallSetup());
    setup.options.optimizer.kind = c.kind;
    setup.options.optimizer.numbers = c.numbers;
    StartedCohort undisturbed(setup);
    undisturbed.PushBoth(PushOfEach({1, -1}, {2}), PushOfEach({0, 0}, {1}));
    const auto state = OkValue(undisturbed.State());
    StartedCohort restored(setup, &state);
    for (FakeCohort* cohort : {&undisturbed, &restored}) {
      cohort->PushBoth(PushOfEach({3, 1}, {-2}), PushOfEach({0, 1}, {0}));
    }
    EXPECT_EQ(restored.snapshot()->version, Version(2));
    EXPECT_EQ(restored.weights(0), undisturbed.weights(0));
    EXPECT_EQ(restored.weights(1), undisturbed.weights(1));
    if (kernels::RuleOf(c.kind).counts_updates) {
      EXPECT_EQ(restored.snapshot()->slots[0].updates, std::vector<int64_t>{2});
    }
  }
}

TEST(CoordinatorOptimizerTest, APatternThatFitsNothingRefusesTheModel) {
  FakeSetup freeze = SmallSetup();
  freeze.options.optimizer.freeze = {"ww"};
  FakeSetup no_decay = SmallSetup();
  no_decay.options.optimizer.no_decay = {"b", "*.gamma"};
  for (const auto& [setup, named] : {std::pair(freeze, "--freeze: got 'ww'"),
                                     {no_decay, "--no_decay: got '*.gamma'"}}) {
    FakeCohort cohort(setup);
    ASSERT_TRUE(cohort.Join(kRank0).ok());
    EXPECT_THAT(cohort.Register(kRank0), IsError(kFailedPrecondition, named));
    EXPECT_EQ(cohort.core().model(), nullptr);
  }
}

TEST(CoordinatorOptimizerTest, MasksAreChangedWhileTheRunGoesOn) {
  StartedCohort cohort(Long(SmallSetup()));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(cohort.Change({{"freeze", "w[2]"}}).status()));
  const FakePush push = PushOfEach({1, 1}, {1});
  cohort.PushBoth(push);
  EXPECT_THAT(cohort.weights(0), ElementsAre(0, 1));
  // Takes effect from the step after the one in progress.
  ASSERT_TRUE(cohort.Change({{"freeze", "w[1];b"}}).ok());
  cohort.PushBoth(push);
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, 0));
  cohort.PushBoth(push);
  EXPECT_THAT(cohort.weights(0), ElementsAre(-2, 0));
  ASSERT_TRUE(cohort.Change({{"freeze", "none"}}).ok());
  cohort.PushBoth(push);
  cohort.PushBoth(push);
  EXPECT_THAT(cohort.weights(0), ElementsAre(-4, -1));
}

TEST(CoordinatorOptimizerTest, OptimizersThatFitFollowEachOther) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.optimizer.kind = OptimizerKind::kMomentum;
  setup.options.optimizer.numbers.momentum = 0.5;
  StartedCohort cohort(setup);
  const FakePush push = PushOfEach({1, 0}, {0});
  cohort.PushBoth(push);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      cohort.Change({{"optimizer", "adam"}}).status()));
  ASSERT_TRUE(cohort.Change({{"optimizer", "sgd"}}).ok());
  cohort.PushBoth(push);
  EXPECT_EQ(cohort.snapshot()->slots[0].velocity, nullptr);
  ASSERT_TRUE(cohort.Change({{"optimizer", "adam"}}).ok());
  cohort.PushBoth(push);
  const float before = cohort.weights(0)[0];
  cohort.PushBoth(push);
  EXPECT_THAT(cohort.weights(0)[0], FloatNear(before - 0.5f, 1e-5f));
  EXPECT_EQ(cohort.snapshot()->slots[0].updates, std::vector<int64_t>{1});
}

// Rank 1 reads version 0 and is applied to version 1.
TEST(CoordinatorOptimizerTest, AStalePushIsCompensated) {
  for (bool adaptive : {false, true}) {
    FakeSetup setup = Long(AsyncSetup());
    setup.options.policy.staleness = {.rule = StalenessRule::kCompensate,
                                      .compensation = 0.5,
                                      .compensation_adaptive = adaptive};
    StartedCohort cohort(setup);
    ASSERT_TRUE(cohort.Open(kRank1, {.loss_weight = 4}).ok());
    // Half of the nominal step: rate 0.25.
    cohort.Push(kRank0, {.w = {4, 0}, .loss_weight = 4});
    EXPECT_THAT(cohort.weights(0), ElementsAre(0, 2));
    cohort.Push(kRank1, {.w = {2, 0}, .loss_weight = 4});
    // g = 2 + lambda * 4 * (0 - 1).
    const double square = 0.95 * (0.05 * 16) + 0.05 * 4;
    const double lambda = adaptive ? 0.5 / std::sqrt(square + 1e-7) : 0.5;
    EXPECT_THAT(cohort.weights(0)[0],
                FloatNear(static_cast<float>(-0.25 * (2 - 4 * lambda)), 1e-6f))
        << adaptive;
    EXPECT_EQ(cohort.snapshot()->version, Version(2));
  }
}

}  // namespace
}  // namespace cohort
