// Special models, and models that do not fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "tests/worker/train/trainer_example.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// `smooth` with a frozen first layer and a parameter that no loss reaches.
class PartlyTrained final : public Model {
 public:
  explicit PartlyTrained(uint64_t seed)
      : inner_(register_module("inner", *Smooth(seed))),
        unused_(register_parameter("unused", torch::ones({6}))) {
    inner_->named_parameters()["conv1.weight"].set_requires_grad(false);
  }
  ModelOutput forward(const at::Tensor& images) override {
    return inner_->forward(images);
  }

 private:
  std::shared_ptr<Model> inner_;
  at::Tensor unused_;
};

TEST(TrainerTest, FrozenAndUnreachedParametersAreToldApart) {
  FakeClient client({TrainOn(0, 5), TrainOn(5, 10)});
  TrainerOptions options = Options();
  options.make_model =
      [](uint64_t seed) -> absl::StatusOr<std::shared_ptr<Model>> {
    return std::make_shared<PartlyTrained>(seed);
  };
  ASSERT_TRUE(RunTrainer(client, options).ok());
  int frozen = 0;
  int absent = 0;
  for (size_t p = 0; p < client.partitions.size(); ++p) {
    const FakeClient::Push& push = client.pushes[1];
    EXPECT_EQ(push.gradients[p].empty(), !client.partitions[p].trainable);
    if (!client.partitions[p].trainable) ++frozen;
    for (const int32_t slice : push.absent_slices[p]) {
      ++absent;
      const Slice& missing =
          client.partitions[p].slices[static_cast<size_t>(slice)];
      const auto parameter = static_cast<size_t>(missing.parameter);
      EXPECT_EQ(client.layout.parameters[parameter].name, "unused");
    }
  }
  EXPECT_EQ(frozen, 1);
  EXPECT_EQ(absent, 1);
}

// The first worker's layout becomes the run's, so a model that cannot compute
// must not set it.
TEST(TrainerTest, AModelThatDoesNotFitIsRefusedBeforeItIsRegistered) {
  struct Misfit {
    int64_t channels;
    int64_t classes;
    const char* text;
  };
  for (const Misfit& misfit :
       {Misfit{3, 3, "the model does not accept an image of tiny"},
        Misfit{1, 4, "got logits [1,4]"}}) {
    FakeClient client({TrainOn(0, 5)});
    TrainerOptions options = Options();
    options.make_model = [&misfit](uint64_t seed) {
      return MakeModel({.name = "smooth",
                        .channels = misfit.channels,
                        .classes = misfit.classes,
                        .seed = seed});
    };
    const absl::Status status = RunTrainer(client, options);
    EXPECT_THAT(status, IsError(kInvalidArgument, misfit.text));
    // The message is LibTorch's, without its stack trace.
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("frame #")));
    EXPECT_TRUE(client.layout.parameters.empty());
  }
}

TEST(TrainerTest, FailureInTheModelIsAnErrorThatNamesTheStep) {
  FakeClient client({TrainOn(0, 5)});
  const TrainerOptions options =
      OptionsAround([](Model& smooth, const at::Tensor& images) {
        TORCH_CHECK(!smooth.is_training(), "out of paper");
        return smooth.forward(images);
      });
  const absl::Status status = RunTrainer(client, options);
  EXPECT_THAT(status,
              IsError(kInternal, "assignment 1 at version 0: out of paper"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("frame #")));
}

// `smooth` whose logits are returned as its own and as an auxiliary head's.
// The loss is then 1.25 times the model's own, so its gradients are 1.25 times
// as large. A factor that is not a power of two adds rounding.
TEST(TrainerTest, AuxiliaryHeadAddsItsWeightedLossButIsNotReported) {
  FakeClient plain({TrainOn(0, 5)});
  ASSERT_TRUE(RunTrainer(plain).ok());
  FakeClient helped({TrainOn(0, 5)});
  const TrainerOptions options =
      OptionsAround([](Model& smooth, const at::Tensor& images) {
        ModelOutput output = smooth.forward(images);
        output.auxiliary.push_back({.logits = output.logits, .weight = 0.25});
        return output;
      });
  ASSERT_TRUE(RunTrainer(helped, options).ok());
  EXPECT_EQ(helped.pushes[0].closing.loss_sum,
            plain.pushes[0].closing.loss_sum);
  const auto& wanted = plain.pushes[0].gradients;
  const auto& seen = helped.pushes[0].gradients;
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t p = 0; p < seen.size(); ++p) {
    ASSERT_EQ(seen[p].size(), wanted[p].size());
    for (size_t i = 0; i < seen[p].size(); ++i) {
      EXPECT_NEAR(seen[p][i], 1.25 * wanted[p][i],
                  1e-6 * (1 + std::abs(wanted[p][i])));
    }
  }
}

}  // namespace
}  // namespace cohort
