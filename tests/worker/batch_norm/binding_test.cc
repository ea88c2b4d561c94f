// Which calls Cohort answers, and everything around the arithmetic.
#include "worker/batch_norm/binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/thread_rendezvous.h"
#include "worker/batch_norm/functional.h"
#include "worker/batch_norm/scope.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kForward = ReducePhase::kForward;
constexpr auto kBackward = ReducePhase::kBackward;

std::tuple<int32_t, int32_t, ReducePhase> Key(int32_t layer, int32_t call,
                                              ReducePhase phase) {
  return {layer, call, phase};
}

// Layers as members, in a Sequential, without parameters and statistics, and a
// shared one.
struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl() {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    block = register_module(
        "block", torch::nn::Sequential(
                     torch::nn::Tanh(),
                     torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(4)
                                                .affine(false)
                                                .track_running_stats(false)
                                                .momentum(torch::nullopt)
                                                .eps(1e-3))));
    alias = register_module("alias", norm.ptr());
  }
  at::Tensor forward(const at::Tensor& x) {
    return norm(block->forward(norm(conv(x))));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential block{nullptr};
  std::shared_ptr<torch::nn::Module> alias;
};
TORCH_MODULE(MixedNet);

StepContext MakeStep(Rendezvous* rendezvous) {
  return {.rendezvous = rendezvous, .backend = &kernels::CpuBackend()};
}

// A layer in a step, with local normalisation until it has a rendezvous.
class BoundNormTest : public testing::Test {
 protected:
  torch::nn::BatchNorm1d norm_{2};
  const BatchNormBinding binding_ = *BatchNormBinding::Make(*norm_);
  NotingRendezvous rendezvous_;
  StepContext step_ = MakeStep(nullptr);
  const BatchNormScope scope_{binding_, &step_};
};

TEST(BatchNormBindingTest, ListsLayersInModuleOrderAndSharedOnesOnce) {
  MixedNet net;
  const auto binding = OkValue(BatchNormBinding::Make(*net));
  ASSERT_EQ(binding.layers().size(), 2U);
  EXPECT_EQ(binding.layers()[0],
            (BatchNormSpec{.name = "norm", .channels = 4}));
  EXPECT_EQ(binding.layers()[1], (BatchNormSpec{.name = "block.1",
                                                .channels = 4,
                                                .epsilon = 1e-3,
                                                .momentum = std::nullopt,
                                                .affine = false,
                                                .track_statistics = false}));
  EXPECT_TRUE(binding.IsScaleOrShift(net->norm->weight));
  EXPECT_FALSE(binding.IsScaleOrShift(net->conv->weight));
}

TEST(BatchNormBindingTest, BindingAddsNoParameterAndNoBuffer) {
  MixedNet net;
  const size_t parameters = net->named_parameters().size();
  const size_t buffers = net->named_buffers().size();
  ASSERT_TRUE(BatchNormBinding::Make(*net).ok());
  EXPECT_EQ(net->named_parameters().size(), parameters);
  EXPECT_EQ(net->named_buffers().size(), buffers);
}

TEST(BatchNormBindingTest, RefusesTwoLayersThatShareTheirTensors) {
  torch::nn::Sequential net(torch::nn::BatchNorm1d(3),
                            torch::nn::BatchNorm1d(3));
  net[1]->as<torch::nn::BatchNorm1d>()->running_mean =
      net[0]->as<torch::nn::BatchNorm1d>()->running_mean;
  EXPECT_THAT(BatchNormBinding::Make(*net),
              IsError(kInvalidArgument, "1 shares its tensors with 0"));
}

TEST(BatchNormBindingTest, StatisticsGoThroughTheModel) {
  torch::nn::BatchNorm1d norm(2);
  auto binding = BatchNormBinding::Make(*norm);
  const std::vector<LayerStatistics> wanted = {
      {.mean = {1, 2}, .variance = {3, 4}, .num_batches_tracked = 5}};
  ASSERT_TRUE(binding->LoadStatistics(wanted).ok());
  EXPECT_EQ(binding->Statistics(), wanted);
  EXPECT_EQ(norm->running_var[1].item<float>(), 4.0F);
  EXPECT_TRUE(absl::IsInvalidArgument(binding->LoadStatistics({})));
}

TEST(BatchNormScopeTest, RoutesEveryLayerAndCountsItsCalls) {
  MixedNet net;
  const auto binding = BatchNormBinding::Make(*net);
  NotingRendezvous rendezvous;
  StepContext step = MakeStep(&rendezvous);
  {
    const BatchNormScope scope(*binding, &step);
    net->forward(at::randn({2, 1, 5, 5})).square().sum().backward();
  }
  // `norm`, then `block.1`, then `norm` again; backward in reverse.
  EXPECT_THAT(rendezvous.keys,
              ElementsAre(Key(0, 0, kForward), Key(1, 0, kForward),
                          Key(0, 1, kForward), Key(0, 1, kBackward),
                          Key(1, 0, kBackward), Key(0, 0, kBackward)));
  EXPECT_THAT(step.calls, ElementsAre(2, 1));
  EXPECT_TRUE(step.moments.empty());
}

TEST(BatchNormScopeTest, CohortOfOneEqualsStockTorch) {
  MixedNet net;
  net->to(at::kDouble);
  const at::Tensor x = at::randn({3, 1, 6, 6}, at::kDouble);
  const at::Tensor stock = net->forward(x);
  stock.square().sum().backward();
  const at::Tensor stock_grad = net->conv->weight.grad().clone();
  net->zero_grad();
  const auto binding = BatchNormBinding::Make(*net);
  StepContext step = MakeStep(nullptr);
  at::Tensor ours;
  {
    const BatchNormScope scope(*binding, &step);
    ours = net->forward(x);
    ours.square().sum().backward();
  }
  EXPECT_TRUE(at::allclose(ours, stock, 1e-10, 1e-10));
  EXPECT_TRUE(at::allclose(net->conv->weight.grad(), stock_grad, 1e-8, 1e-10));
}

TEST(BatchNormScopeTest, LocalMomentsAreReportedByLayerThenCall) {
  MixedNet net;
  const auto binding = BatchNormBinding::Make(*net);
  StepContext step = MakeStep(nullptr);
  {
    const BatchNormScope scope(*binding, &step);
    net->forward(at::randn({3, 1, 6, 6}));
  }
  std::vector<std::pair<int32_t, int32_t>> order;
  for (const CallMoments& moments : step.moments) {
    order.emplace_back(moments.layer, moments.call);
    EXPECT_EQ(moments.moments.count, 3 * 4 * 4);
  }
  // Called as layer 0, 1, 0.
  EXPECT_THAT(order,
              ElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(1, 0)));
}

TEST_F(BoundNormTest, LeavesMovingStatisticsAlone) {
  norm_->forward(at::randn({8, 2}) + 5);
  EXPECT_TRUE(at::equal(norm_->running_mean, at::zeros({2})));
  EXPECT_TRUE(at::equal(norm_->running_var, at::ones({2})));
}

TEST_F(BoundNormTest, EvalModeNormalisesByMovingStatistics) {
  step_.rendezvous = &rendezvous_;
  norm_->running_mean.fill_(3);
  norm_->running_var.fill_(4);
  norm_->eval();
  const at::Tensor y = norm_->forward(at::full({2, 2}, 7.0));
  EXPECT_TRUE(at::allclose(y, at::full({2, 2}, 2.0), 1e-5));
  EXPECT_TRUE(rendezvous_.keys.empty());
  EXPECT_THAT(step_.calls, ElementsAre(0));
}

TEST(BatchNormScopeTest, FrozenLayerKeepsItsStatisticsInTrainingMode) {
  torch::nn::Sequential net(torch::nn::BatchNorm1d(2), torch::nn::Tanh(),
                            torch::nn::BatchNorm1d(2));
  auto& frozen = *net[2]->as<torch::nn::BatchNorm1d>();
  frozen.running_mean.fill_(0.5);
  frozen.running_var.fill_(0.25);
  const auto binding =
      OkValue(BatchNormBinding::Make(*net, {.frozen_statistics = {"2"}}));
  EXPECT_TRUE(binding.HasFrozen());
  EXPECT_FALSE(binding.IsFrozen(0));
  NotingRendezvous rendezvous;
  StepContext step = MakeStep(&rendezvous);
  const BatchNormScope scope(binding, &step);
  const at::Tensor x = at::randn({4, 2}).requires_grad_();
  const at::Tensor y = net->forward(x);
  const at::Tensor h =
      torch::tanh(net[0]->as<torch::nn::BatchNorm1d>()->forward(x));
  EXPECT_TRUE(at::allclose(y, (h - 0.5) / std::sqrt(0.25 + 1e-5), 1e-5, 1e-6));
  y.sum().backward();
  // Two forward calls of layer 0 above, none of layer 1.
  EXPECT_THAT(rendezvous.keys,
              ElementsAre(Key(0, 0, kForward), Key(0, 1, kForward),
                          Key(0, 0, kBackward)));
  EXPECT_THAT(step.calls, ElementsAre(2, 0));
}

TEST(BatchNormBindingTest, FreezesByNameOrBeginning) {
  MixedNet net;
  const auto all =
      OkValue(BatchNormBinding::Make(*net, {.frozen_statistics = {"n*"}}));
  EXPECT_TRUE(all.IsFrozen(0));
  EXPECT_FALSE(all.IsFrozen(1));
  EXPECT_THAT(BatchNormBinding::Make(*net, {.frozen_statistics = {"nor"}}),
              IsError(kInvalidArgument,
                      "got nor, want a batch-norm layer such as norm"));
  // block.1 tracks no statistics.
  EXPECT_THAT(BatchNormBinding::Make(*net, {.frozen_statistics = {"*"}}),
              IsError(kInvalidArgument, "block.1 has no moving statistics"));
}

TEST(BatchNormScopeTest, OutsideAScopeAModuleIsStockTorch) {
  torch::nn::BatchNorm1d norm(1);
  const auto binding = BatchNormBinding::Make(*norm);
  StepContext step = MakeStep(nullptr);
  { const BatchNormScope scope(*binding, &step); }
  const at::Tensor x = at::tensor({1.0F, 3.0F}).view({2, 1});
  const at::Tensor y = norm->forward(x);
  EXPECT_NEAR(y[1].item<float>(), 1.0F, 1e-5);
  // Mean 2 and unbiased variance 2, with factor 0.1.
  EXPECT_NEAR(norm->running_mean.item<float>(), 0.2F, 1e-6);
  EXPECT_NEAR(norm->running_var.item<float>(), 1.1F, 1e-6);
  EXPECT_THAT(step.calls, ElementsAre(0));
}

TEST(BatchNormFunctionalTest, OutsideAScopeItIsTheModule) {
  const at::Tensor x = at::randn({4, 3, 2, 2});
  const at::Tensor z = at::randn({4, 3, 2, 2});
  for (const bool cumulative : {false, true}) {
    torch::nn::BatchNormOptions options(3);
    if (cumulative) options.momentum(torch::nullopt);
    torch::nn::BatchNorm2d ours(options);
    torch::nn::BatchNorm2d stock(options);
    EXPECT_TRUE(at::equal(BatchNorm(ours, x), stock(x)));
    EXPECT_TRUE(at::equal(BatchNormRelu(ours, x + 1), stock(x + 1).relu()));
    EXPECT_TRUE(
        at::equal(BatchNormAddRelu(ours, x * 2, z), (stock(x * 2) + z).relu()));
    EXPECT_TRUE(at::equal(ours->running_mean, stock->running_mean));
    EXPECT_TRUE(at::equal(ours->running_var, stock->running_var));
    EXPECT_EQ(ours->num_batches_tracked.item<int64_t>(), 3);
    ours->eval();
    stock->eval();
    EXPECT_TRUE(at::equal(BatchNorm(ours, x), stock(x)));
    EXPECT_EQ(ours->num_batches_tracked.item<int64_t>(), 3);
  }
}

TEST(BatchNormFunctionalTest, OneElementAChannelAloneMovesNoStatistics) {
  torch::nn::BatchNorm2d norm(3);
  const at::Tensor y = BatchNorm(norm, at::randn({1, 3, 1, 1}));
  // The stock operator computes x * invstd - mean * invstd in float32, with an
  // invstd of 316.
  EXPECT_LT(y.abs().max().item<float>(), 1e-3F);
  EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({3})));
  EXPECT_TRUE(at::equal(norm->running_var, at::ones({3})));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST(BatchNormFunctionalTest, WhatDoesNotFitIsNamed) {
  torch::nn::BatchNorm2d norm(3);
  const auto binding = BatchNormBinding::Make(*norm);
  StepContext step = MakeStep(nullptr);
  const BatchNormScope scope(*binding, &step);
  const at::Tensor x = at::randn({2, 3, 4, 4});
  EXPECT_THAT(
      [&] {
        BatchNormAddRelu(norm, x, at::randn({2, 3, 1, 4}));
      },
      ThrowsMessage<c10::Error>(HasSubstr("got Float [2, 3, 1, 4] to add")));
  EXPECT_THAT([&] { BatchNormAddRelu(norm, x.to(at::kLong), {}); },
              ThrowsMessage<c10::Error>(HasSubstr("type Long, want Float")));
}

TEST(BatchNormScopeTest, UnboundLayersAndGroupedOperatorsAreStockTorch) {
  torch::nn::BatchNorm1d bound(2);
  torch::nn::BatchNorm1d stranger(2);
  const auto binding = BatchNormBinding::Make(*bound);
  StepContext step = MakeStep(nullptr);
  const BatchNormScope scope(*binding, &step);
  stranger->forward(at::randn({4, 2}));
  EXPECT_EQ(stranger->num_batches_tracked.item<int64_t>(), 1);
  EXPECT_FALSE(at::equal(stranger->running_mean, at::zeros({2})));
  // Instance norm calls the same operator with its own tensors.
  torch::nn::InstanceNorm1d(2)->forward(at::randn({4, 2, 3}));
  EXPECT_TRUE(step.moments.empty());
}

TEST_F(BoundNormTest, InnerScopeCountsAndOuterComesBack) {
  StepContext inner = MakeStep(nullptr);
  {
    const BatchNormScope inner_scope(binding_, &inner);
    norm_->forward(at::randn({4, 2}));
  }
  norm_->forward(at::randn({4, 2}));
  norm_->forward(at::randn({4, 2}));
  EXPECT_THAT(inner.calls, ElementsAre(1));
  EXPECT_THAT(step_.calls, ElementsAre(2));
}

TEST(BatchNormScopeTest, FailedRendezvousLeavesAPassWithItsType) {
  for (const ReducePhase phase : {kForward, kBackward}) {
    MixedNet net;
    const auto binding = BatchNormBinding::Make(*net);
    NotingRendezvous rendezvous;
    rendezvous.fail = phase;
    StepContext step = MakeStep(&rendezvous);
    const BatchNormScope scope(*binding, &step);
    at::Tensor loss;
    EXPECT_THAT(
        [&] {
          loss = net->forward(at::randn({2, 1, 5, 5})).sum();
          loss.backward();
        },
        ThrowsMessage<StepInterrupted>("ABORTED: rank 3 is lost"));
    EXPECT_EQ(loss.defined(), phase == kBackward);
  }
}

TEST(BatchNormScopeTest, BackwardAfterTheScopeIsInterrupted) {
  torch::nn::BatchNorm1d norm(2);
  const auto binding = BatchNormBinding::Make(*norm);
  StepContext step = MakeStep(nullptr);
  at::Tensor loss;
  {
    const BatchNormScope scope(*binding, &step);
    loss = norm->forward(at::randn({4, 2})).sum();
  }
  EXPECT_THROW(loss.backward(), StepInterrupted);
}

TEST_F(BoundNormTest, BackwardRendezvousOnlyWhereTheInputNeedsIt) {
  step_.rendezvous = &rendezvous_;
  norm_->forward(at::randn({4, 2})).sum().backward();
  EXPECT_THAT(rendezvous_.keys, ElementsAre(Key(0, 0, kForward)));
  EXPECT_TRUE(at::equal(norm_->bias.grad(), at::full({2}, 4.0F)))
      << norm_->bias.grad();
}

TEST_F(BoundNormTest, FrozenScaleAndShiftGetNoGradient) {
  norm_->weight.set_requires_grad(false);
  const at::Tensor x = at::randn({4, 2}).requires_grad_();
  norm_->forward(x).square().sum().backward();
  EXPECT_FALSE(norm_->weight.grad().defined());
  EXPECT_TRUE(norm_->bias.grad().defined());
  EXPECT_TRUE(x.grad().defined());
}

// Returns its input and provides no gradient.
struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*,
                            const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    return {at::Tensor()};
  }
};

TEST_F(BoundNormTest, UndefinedGradientStillTakesPart) {
  step_.rendezvous = &rendezvous_;
  const at::Tensor x = at::randn({4, 2}).requires_grad_();
  NoGradient::apply(norm_->forward(x)).sum().backward();
  EXPECT_THAT(rendezvous_.keys,
              ElementsAre(Key(0, 0, kForward), Key(0, 0, kBackward)));
  EXPECT_TRUE(at::equal(x.grad(), at::zeros({4, 2})));
}

TEST(BatchNormScopeTest, WrongChannelCountIsNamed) {
  torch::nn::Sequential net(torch::nn::BatchNorm2d(3));
  const auto binding = BatchNormBinding::Make(*net);
  StepContext step = MakeStep(nullptr);
  const BatchNormScope scope(*binding, &step);
  EXPECT_THAT(
      [&] {
        net->forward(at::randn({2, 5, 4, 4}));
      },
      ThrowsMessage<c10::Error>(HasSubstr("5 channels, want 3")));
}

TEST_F(BoundNormTest, SecondDerivativeIsRefused) {
  const at::Tensor x = at::randn({4, 2}).requires_grad_();
  const at::Tensor loss = norm_->forward(x).square().sum();
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true),
               c10::Error);
}

}  // namespace
}  // namespace cohort
