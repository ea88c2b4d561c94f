#include "worker/train/gradient_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "tests/worker/train/trainer_example.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/step_interrupted.h"
#include "worker/session/worker_session.h"
#include "worker/train/model_weights.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

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

// A step of a model that is cut into one partition a parameter.
class GradientHooksTest : public ::testing::Test {
 protected:
  GradientHooksTest()
      : client_({{.kind = AssignmentKind::kTrain},
                 {.kind = AssignmentKind::kTrain}}),
        session_(client_, {}) {
    // Nine floats, so one weight.
    client_.partition_bytes = 36;
    client_.on_gradient = [this](int32_t partition) {
      sent_.push_back(
          client_.layout.parameters[static_cast<size_t>(partition)].name);
      return refusal_;
    };
  }

  // Registers the model, watches it and begins a step.
  void Start() {
    const BatchNormBinding binding = *BatchNormBinding::Make(chain_);
    ModelWeights weights = *ModelWeights::Make(chain_, binding);
    memory_ = *weights.MakeMemory({});
    ExpectOk(session_.Register(weights.layout(), {}, weights.Values(), {},
                               *memory_));
    hooks_.emplace(weights.parameters(), session_);
    Begin();
    hooks_->set_sending(true);
  }

  void Begin() {
    sent_.clear();
    session_.Begin(*session_.NextAssignment());
  }

  Chain chain_;
  FakeClient client_;
  WorkerSession session_;
  std::unique_ptr<ModelMemory> memory_;
  std::optional<GradientHooks> hooks_;
  std::vector<std::string> sent_;
  absl::Status refusal_;
};

TEST_F(GradientHooksTest, PartitionsLeaveAsTheirParametersBecomeFinal) {
  Start();
  chain_.Loss().backward();
  // From the output to the input.
  EXPECT_THAT(sent_,
              ElementsAre("third.weight", "second.weight", "first.weight"));
}

TEST_F(GradientHooksTest, EarlierPassesAddUpAndSendNothing) {
  Start();
  hooks_->set_sending(false);
  chain_.Loss().backward();
  EXPECT_TRUE(sent_.empty());
  const at::Tensor once = chain_.third->weight.grad().clone();
  hooks_->set_sending(true);
  chain_.Loss().backward();
  EXPECT_EQ(sent_.size(), 3U);
  EXPECT_TRUE(at::equal(chain_.third->weight.grad(), 2 * once));
}

TEST_F(GradientHooksTest, RefusalLeavesTheBackwardPassAndTheNextPushIsWhole) {
  Start();
  refusal_ = absl::AbortedError("rank 1 is lost");
  EXPECT_THAT([this] { chain_.Loss().backward(); },
              ThrowsMessage<StepInterrupted>(refusal_.ToString()));
  EXPECT_EQ(sent_.size(), 1U);

  refusal_ = absl::OkStatus();
  chain_.zero_grad();
  Begin();
  chain_.Loss().backward();
  ASSERT_TRUE(session_.SendRest().ok());
  EXPECT_EQ(sent_.size(), 4U);
}

TEST_F(GradientHooksTest, FrozenParameterIsNeverSent) {
  chain_.second->weight.set_requires_grad(false);
  Start();
  chain_.Loss().backward();
  ASSERT_TRUE(session_.SendRest().ok());
  EXPECT_EQ(sent_.size(), 3U);
  EXPECT_THAT(sent_, Each(Not(HasSubstr("second.weight"))));
}

TEST_F(GradientHooksTest, HooksThatAreGoneAreNotReached) {
  Start();
  hooks_.reset();
  chain_.Loss().backward();
  EXPECT_TRUE(sent_.empty());
}

// With batch norm over the cohort, the backward pass waits in a rendezvous at
// each layer. By then the gradients of later layers are on their way.
TEST(TrainerOverlapTest, LastLayersTravelBeforeTheFirstAreComputed) {
  FakeClient client({TrainOn(0, 5)});
  client.partition_bytes = 40;
  TrainerOptions options = Options();
  options.accumulate = 2;
  ASSERT_TRUE(RunTrainer(client, options).ok());
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
