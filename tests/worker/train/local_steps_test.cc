#include "worker/train/local_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <optional>
#include <vector>

#include "tests/fakes/statuses.h"
#include "worker/batch_norm/binding.h"
#include "worker/train/model_weights.h"

namespace cohort {
namespace {

using Kind = LocalOptimizerOptions::Kind;

// One number each; "bias" is exempt from decay, "unused" never has a gradient.
class LocalStepsTest : public ::testing::Test {
 protected:
  LocalStepsTest() {
    for (const char* name : {"weight", "bias", "unused"}) {
      model_.register_parameter(name, torch::full({1}, 2.0));
    }
    frozen_ = model_.register_parameter("frozen", torch::full({1}, 5.0),
                                        /*requires_grad=*/false);
    const auto binding = BatchNormBinding::Make(model_);
    weights_.emplace(OkValue(ModelWeights::Make(model_, *binding)));
  }

  at::Tensor parameter(size_t i) { return weights_->parameters()[i]; }
  float value(size_t i) { return parameter(i).item<float>(); }

  // One step with these gradients of weight and bias.
  void Step(LocalSteps& steps, double weight, double bias) {
    parameter(0).mutable_grad() = torch::full({1}, weight);
    parameter(1).mutable_grad() = torch::full({1}, bias);
    steps.Step();
  }

  torch::nn::Module model_;
  at::Tensor frozen_;
  std::optional<ModelWeights> weights_;
};

TEST_F(LocalStepsTest, PushesWhatThreeStepsOfMomentumMove) {
  LocalSteps steps(*weights_,
                   {.learning_rate = 0.2, .momentum = 0.5, .weight_decay = 0},
                   0.5);
  for (int i = 0; i < 3; ++i) Step(steps, 1, -1);
  // Velocities 1, 1.5 and 1.75 at a rate of 0.1.
  EXPECT_FLOAT_EQ(value(0), 2 - 0.425F);
  EXPECT_FALSE(parameter(0).grad().defined());
  steps.Finish(4);
  EXPECT_EQ(value(0), 2);
  EXPECT_EQ(value(1), 2);
  // Differences of numbers near 2, in float32.
  EXPECT_NEAR(parameter(0).grad().item<float>(), 4 * 0.425, 2e-6);
  EXPECT_NEAR(parameter(1).grad().item<float>(), -4 * 0.425, 2e-6);
  EXPECT_FALSE(parameter(2).grad().defined());
  EXPECT_EQ(frozen_.item<float>(), 5);
}

// A repeated assignment: the same bits.
TEST_F(LocalStepsTest, StartsWithoutState) {
  std::vector<float> pushed;
  for (const Kind kind : {Kind::kSgd, Kind::kNesterov, Kind::kAdamW}) {
    for (int repetition = 0; repetition < 2; ++repetition) {
      LocalSteps steps(*weights_, {.kind = kind}, 1);
      for (int i = 1; i < 4; ++i) Step(steps, 0.3 * i, -0.1 * i);
      steps.Finish(1);
      pushed.push_back(parameter(0).grad().item<float>());
    }
    EXPECT_EQ(pushed.end()[-1], pushed.end()[-2]);
  }
  EXPECT_NE(pushed[0], pushed[2]);
  EXPECT_NE(pushed[2], pushed[4]);
}

TEST_F(LocalStepsTest, GroupsHaveTheirRatesAndDecay) {
  weights_->mutable_layout().parameters[0].rate_multiplier = 10;
  weights_->mutable_layout().parameters[0].decay_multiplier = 0.5;
  LocalSteps steps(*weights_,
                   {.learning_rate = 0.01, .momentum = 0, .weight_decay = 0.2},
                   1);
  Step(steps, 1, 1);
  steps.Finish(1);
  // Differences of numbers near 2, in float32.
  EXPECT_NEAR(parameter(0).grad().item<float>(), 0.1 * (1 + 0.1 * 2), 3e-7);
  EXPECT_NEAR(parameter(1).grad().item<float>(), 0.01, 3e-7);
}

TEST_F(LocalStepsTest, ADivergedStepIsPushedAsItIs) {
  LocalSteps steps(*weights_, {}, 1);
  Step(steps, std::nan(""), 1);
  steps.Finish(1);
  EXPECT_TRUE(std::isnan(parameter(0).grad().item<float>()));
  EXPECT_EQ(value(0), 2);
}

TEST(LocalOptimizerTextTest, NamesWhatDiffersFromTheDefault) {
  EXPECT_EQ(LocalOptimizerText({}), "");
  EXPECT_NE(LocalOptimizerText({.momentum = 0}), LocalOptimizerText({}));
  EXPECT_NE(LocalOptimizerText({.kind = Kind::kAdamW}),
            LocalOptimizerText({.kind = Kind::kNesterov}));
}

}  // namespace
}  // namespace cohort
