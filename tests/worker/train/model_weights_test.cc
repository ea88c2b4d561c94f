#include "worker/train/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/fakes/statuses.h"
#include "worker/batch_norm/binding.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

TEST(ModelWeightsTest, SharedParameterIsListedOnce) {
  torch::nn::Module tied;
  const at::Tensor shared = torch::ones({2});
  tied.register_parameter("a", shared);
  tied.register_parameter("b", shared);
  const auto binding = BatchNormBinding::Make(tied);
  const auto weights = OkValue(ModelWeights::Make(tied, *binding));
  ASSERT_EQ(weights.layout().parameters.size(), 1U);
  EXPECT_EQ(weights.layout().parameters[0].name, "a");
}

TEST(ModelWeightsTest, BiasesOfAnyKindAreExemptFromDecay) {
  torch::nn::Module model;
  model.register_module("gru", torch::nn::GRU(2, 2).ptr());
  model.register_module("fc", torch::nn::Linear(2, 2).ptr());
  const auto binding = BatchNormBinding::Make(model);
  const auto weights = OkValue(ModelWeights::Make(model, *binding));
  std::vector<std::string> exempt;
  for (const ParameterSpec& parameter : weights.layout().parameters) {
    if (parameter.decay_exempt) exempt.push_back(parameter.name);
  }
  EXPECT_THAT(exempt,
              ElementsAre("gru.bias_ih_l0", "gru.bias_hh_l0", "fc.bias"));
}

TEST(ModelWeightsTest, RefusesOtherTypesByName) {
  torch::nn::Module model;
  model.register_parameter("scale", torch::ones({2}, torch::kDouble));
  const auto binding = BatchNormBinding::Make(model);
  EXPECT_THAT(ModelWeights::Make(model, *binding),
              IsError(kInvalidArgument, "scale: "));
}

}  // namespace
}  // namespace cohort
