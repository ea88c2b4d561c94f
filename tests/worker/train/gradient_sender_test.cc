#include "worker/train/gradient_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/tiny_dataset.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/step_interrupted.h"
#include "worker/models/model.h"
#include "worker/train/trainer.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = third(second(first(x))), and an unused layer. Each has one weight of nine
// floats.
struct Chain : torch::nn::Module {
  torch::nn::Linear first = Layer("first");
  torch::nn::Linear second = Layer("second");
  torch::nn::Linear third = Layer("third");
  torch::nn::Linear unused = Layer("unused");

  torch::nn::Linear Layer(const std::string& name) {
    return register_module(
        name, torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
  }

  at::Tensor Loss() { return third(second(first(torch::ones({4, 3})))).sum(); }
};

// An open push of a model that is cut into one partition a parameter.
class GradientSenderTest : public ::testing::Test {
 protected:
  GradientSenderTest()
      : client_({{.kind = AssignmentKind::kTrain},
                 {.kind = AssignmentKind::kTrain}}),
        binding_(*BatchNormBinding::Make(chain_)),
        weights_(*ModelWeights::Make(chain_, binding_)) {
    // Nine floats, so one weight.
    client_.partition_bytes = 36;
    const auto registration =
        client_.Register(weights_.layout(), {}, weights_.Values(), {});
    weights_.SetPartitions(registration->partitions);
    (void)*client_.NextAssignment();
    client_.on_gradient = [this](int32_t partition) {
      sent_.push_back(NameOf(partition));
      return refusal_;
    };
  }

  std::string NameOf(int32_t partition) const {
    const Partition& p = weights_.partitions()[static_cast<size_t>(partition)];
    std::string names;
    for (const Slice& slice : p.slices) {
      names += weights_.layout()
                   .parameters[static_cast<size_t>(slice.parameter)]
                   .name +
               " ";
    }
    return names;
  }

  Chain chain_;
  FakeClient client_;
  BatchNormBinding binding_;
  ModelWeights weights_;
  std::vector<std::string> sent_;
  absl::Status refusal_;
};

TEST_F(GradientSenderTest, PartitionsLeaveAsTheirParametersBecomeFinal) {
  GradientSender sender(weights_, client_);
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  // From the output to the input.
  EXPECT_THAT(sent_,
              ElementsAre("third.weight ", "second.weight ", "first.weight "));
}

// Partitions 0 to 3 are first, second, third and unused.
TEST_F(GradientSenderTest, PartitionWaitsForItsTurn) {
  GradientSender sender(weights_, client_, nullptr, {1, 2, 0, 3});
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  EXPECT_THAT(sent_,
              ElementsAre("second.weight ", "third.weight ", "first.weight "));
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_EQ(sent_.size(), 4U);
}

TEST_F(GradientSenderTest, UnusedParameterHoldsTheOthersUpOnlyOnce) {
  GradientSender sender(weights_, client_, nullptr, {3, 2, 1, 0});
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  EXPECT_TRUE(sent_.empty());
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_THAT(sent_, ElementsAre("unused.weight ", "third.weight ",
                                 "second.weight ", "first.weight "));
  sent_.clear();
  (void)*client_.NextAssignment();
  sender.Begin();
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  EXPECT_THAT(sent_,
              ElementsAre("third.weight ", "second.weight ", "first.weight "));
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_EQ(sent_.size(), 4U);
}

TEST_F(GradientSenderTest, RestIsWhatHasNoGradient) {
  GradientSender sender(weights_, client_);
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  sent_.clear();
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_THAT(sent_, ElementsAre("unused.weight "));
  sent_.clear();
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_TRUE(sent_.empty());
}

// A partition waits for all of its parameters, used or not.
TEST_F(GradientSenderTest, SharedPartitionWaitsForItsLastParameter) {
  client_.partition_bytes = 1 << 20;
  weights_.SetPartitions(
      MakePartitions(weights_.layout(), client_.partition_bytes));
  client_.partitions = weights_.partitions();
  (void)*client_.NextAssignment();
  GradientSender sender(weights_, client_);
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  EXPECT_TRUE(sent_.empty());
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_EQ(sent_.size(), 1U);
}

TEST_F(GradientSenderTest, EarlierPassesAddUpAndSendNothing) {
  GradientSender sender(weights_, client_);
  chain_.Loss().backward();
  EXPECT_TRUE(sent_.empty());
  const at::Tensor once = chain_.third->weight.grad().clone();
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  EXPECT_EQ(sent_.size(), 3U);
  EXPECT_TRUE(at::equal(chain_.third->weight.grad(), 2 * once));
}

TEST_F(GradientSenderTest, RefusalLeavesTheBackwardPassAndTheNextPushIsWhole) {
  GradientSender sender(weights_, client_);
  refusal_ = absl::AbortedError("rank 1 is lost");
  sender.SendDuringNextPass();
  const auto refused = [this]() -> absl::Status {
    try {
      chain_.Loss().backward();
    } catch (const StepInterrupted& interrupted) {
      return interrupted.status();
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(refused(), refusal_);
  EXPECT_EQ(sent_.size(), 1U);

  refusal_ = absl::OkStatus();
  sent_.clear();
  weights_.ClearGradients();
  sender.Begin();
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_EQ(sent_.size(), 4U);
}

TEST_F(GradientSenderTest, SecondGradientAfterTheFirstWasSentIsAnError) {
  GradientSender sender(weights_, client_);
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  try {
    chain_.Loss().backward();
    FAIL() << "the second pass went unnoticed";
  } catch (const StepInterrupted& interrupted) {
    EXPECT_EQ(interrupted.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(interrupted.status().message()),
                HasSubstr("third."));
  }
}

TEST_F(GradientSenderTest, FrozenParameterIsNeverSent) {
  chain_.second->weight.set_requires_grad(false);
  weights_ = *ModelWeights::Make(chain_, binding_);
  weights_.SetPartitions(
      MakePartitions(weights_.layout(), client_.partition_bytes));
  client_.partitions = weights_.partitions();
  (void)*client_.NextAssignment();
  GradientSender sender(weights_, client_);
  sender.SendDuringNextPass();
  chain_.Loss().backward();
  ASSERT_TRUE(sender.SendRest().ok());
  EXPECT_EQ(sent_.size(), 3U);
  EXPECT_THAT(sent_, Each(::testing::Not(HasSubstr("second.weight"))));
}

TEST_F(GradientSenderTest, GoneSenderIsNotReached) {
  { const GradientSender sender(weights_, client_); }
  chain_.Loss().backward();
  EXPECT_TRUE(sent_.empty());
}

// With batch norm over the cohort, the backward pass waits in a rendezvous at
// each layer. By then the gradients of later layers are on their way.
TEST(TrainerOverlapTest, LastLayersTravelBeforeTheFirstAreComputed) {
  FakeClient client({{.kind = AssignmentKind::kTrain,
                      .members = {Rank(0)},
                      .range = {.begin = 0, .end = 5},
                      .global_normalization = true}});
  client.partition_bytes = 40;
  const TinyDataset dataset;
  const TrainerOptions options{
      .make_model =
          [](uint64_t seed) {
            return MakeModel({.name = "smooth", .classes = 3, .seed = seed});
          },
      .batch_size = 5,
      .accumulate = 2,
      .backend = &kernels::CpuBackend()};
  ASSERT_TRUE(Trainer(client, dataset, options).Run().ok());
  ASSERT_EQ(client.pushes.size(), 1U);
  // Three layers forward and three backward in each of two parts; nothing is
  // sent in the first part.
  EXPECT_EQ(client.ReducedBefore("fc.weight"), 9U);
  EXPECT_EQ(client.ReducedBefore("conv3.weight"), 10U);
  EXPECT_EQ(client.ReducedBefore("conv2.weight"), 11U);
  EXPECT_EQ(client.ReducedBefore("conv1.weight"), 12U);
}

}  // namespace
}  // namespace cohort
