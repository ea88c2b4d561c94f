// Batch-norm calls that share a rendezvous: results are bit-identical to calls
// made one by one, and there are fewer waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/fakes/fake_accelerator.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/thread_rendezvous.h"
#include "tests/worker/batch_norm/joined_batch.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/functional.h"
#include "worker/batch_norm/scope.h"
#include "worker/batch_norm/step_interrupted.h"
#include "worker/device/pinned_pool.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::BatchNorm2d;

constexpr int64_t kChannels = 5;

// The default generator is shared by all threads.
at::Generator Seeded(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

// A given number of layers, each with its own scale and shift.
struct NormsImpl : torch::nn::Module {
  explicit NormsImpl(size_t count) {
    at::Generator random = Seeded(3);
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < count; ++i) {
      norms.push_back(
          register_module("norm" + std::to_string(i), BatchNorm2d(kChannels)));
      norms.back()->weight.uniform_(0.5, 1.5, random);
      norms.back()->bias.normal_(0, 1, random);
      norms.back()->running_mean.normal_(0, 1, random);
      norms.back()->running_var.uniform_(0.5, 2, random);
    }
  }
  std::vector<BatchNorm2d> norms;
};
TORCH_MODULE(Norms);

using Forward = std::function<std::vector<at::Tensor>(
    Norms&, const std::vector<at::Tensor>&)>;

std::vector<at::Tensor> PairTogether(Norms& net,
                                     const std::vector<at::Tensor>& x) {
  return {BatchNormPairAddRelu(net->norms[0], x[0], net->norms[1], x[1])};
}

std::vector<at::Tensor> PairOneByOne(Norms& net,
                                     const std::vector<at::Tensor>& x) {
  return {
      BatchNormAddRelu(net->norms[0], x[0], BatchNorm(net->norms[1], x[1]))};
}

std::vector<at::Tensor> EachTogether(Norms& net,
                                     const std::vector<at::Tensor>& x) {
  std::vector<std::pair<BatchNorm2d, at::Tensor>> siblings;
  for (size_t i = 0; i < x.size(); ++i) {
    siblings.emplace_back(net->norms[i], x[i]);
  }
  return BatchNormReluEach<BatchNorm2d>(siblings);
}

std::vector<at::Tensor> EachOneByOne(Norms& net,
                                     const std::vector<at::Tensor>& x) {
  std::vector<at::Tensor> y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(BatchNormRelu(net->norms[i], x[i]));
  }
  return y;
}

struct Setting {
  at::ScalarType type = at::kFloat;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  // Number of images of each worker.
  std::vector<int64_t> images = {2, 3};
  // If true, only every other input has the layout `format`.
  bool mixed_layouts = false;
  // If false, each worker normalises by its own batch.
  bool global = true;
  bool device = false;
  // Layer names, as in --frozen_statistics.
  std::vector<std::string> frozen;
  // Indices of the inputs that need no gradient.
  std::vector<size_t> constant;
};

struct Seen {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients;
  std::vector<size_t> together;
  std::vector<CallMoments> moments;
};

at::Tensor Input(const Setting& setting, size_t rank, size_t i) {
  const at::Tensor x = at::randn({setting.images[rank], kChannels, 4, 3},
                                 Seeded(100 * rank + i)) *
                           2 +
                       1;
  const bool as_told = !setting.mixed_layouts || i % 2 == 0;
  return x.to(setting.type)
      .contiguous(as_told ? setting.format : at::MemoryFormat::Contiguous);
}

at::Tensor Upstream(const at::Tensor& y, size_t rank, size_t i) {
  return at::randn(y.sizes(), Seeded(1000 + 100 * rank + i)).to(y.options());
}

Seen RunRank(const Setting& setting, size_t layers, const Forward& forward,
             size_t rank, Rendezvous& rendezvous) {
  Norms net(layers);
  if (setting.type == at::kDouble) net->to(at::kDouble);
  const auto binding = OkValue(
      BatchNormBinding::Make(*net, {.frozen_statistics = setting.frozen}));
  FakeAccelerator accelerator;
  PinnedPool pool(accelerator);
  NotingRendezvous counting(&rendezvous);
  StepContext step{.rendezvous = setting.global ? &counting : nullptr,
                   .backend = &kernels::CpuBackend()};
  if (setting.device) {
    step.compute = {.accelerator = &accelerator, .pinned = &pool};
  }
  Seen seen;
  std::vector<at::Tensor> x;
  for (size_t i = 0; i < layers; ++i) {
    x.push_back(Input(setting, rank, i));
    const bool constant =
        std::count(setting.constant.begin(), setting.constant.end(), i) > 0;
    x.back().requires_grad_(!constant);
  }
  {
    const BatchNormScope scope(binding, &step);
    std::vector<at::Tensor> upstream;
    seen.outputs = forward(net, x);
    for (size_t i = 0; i < seen.outputs.size(); ++i) {
      upstream.push_back(Upstream(seen.outputs[i], rank, i));
    }
    torch::autograd::backward(seen.outputs, upstream);
  }
  for (const at::Tensor& input : x) seen.gradients.push_back(input.grad());
  for (const at::Tensor& parameter : net->parameters()) {
    seen.gradients.push_back(parameter.grad());
  }
  seen.together = counting.together;
  seen.moments = step.moments;
  return seen;
}

std::vector<Seen> RunAll(const Setting& setting, size_t layers,
                         const Forward& forward) {
  const size_t workers = setting.images.size();
  ThreadRendezvous rendezvous(workers);
  std::vector<Seen> seen(workers);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      seen[rank] =
          RunRank(setting, layers, forward, rank, rendezvous.OfRank(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

void ExpectSameBits(const std::vector<at::Tensor>& seen,
                    const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(seen[i].defined(), wanted[i].defined());
    if (!seen[i].defined()) continue;
    EXPECT_EQ(seen[i].strides(), wanted[i].strides());
    EXPECT_TRUE(at::equal(seen[i], wanted[i]));
  }
}

// Returns the number of contributions in each wait, for the calls made
// together.
std::vector<size_t> ExpectTheBitsOfOneByOne(const Setting& setting,
                                            size_t layers,
                                            const Forward& together,
                                            const Forward& one_by_one) {
  const std::vector<Seen> seen = RunAll(setting, layers, together);
  const std::vector<Seen> wanted = RunAll(setting, layers, one_by_one);
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    SCOPED_TRACE(rank);
    ExpectSameBits(seen[rank].outputs, wanted[rank].outputs);
    ExpectSameBits(seen[rank].gradients, wanted[rank].gradients);
    EXPECT_EQ(seen[rank].moments.size(), wanted[rank].moments.size());
    EXPECT_THAT(wanted[rank].together, Each(1));
    EXPECT_EQ(seen[rank].together, seen[0].together);
  }
  return seen[0].together;
}

std::vector<size_t> ExpectPair(const Setting& setting) {
  return ExpectTheBitsOfOneByOne(setting, 2, PairTogether, PairOneByOne);
}

using Waits = std::vector<size_t>;

TEST(BatchNormPairTest, BitsAreThoseOfTwoCallsWithHalfTheWaits) {
  for (const bool device : {false, true}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const at::MemoryFormat format :
           {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        SCOPED_TRACE(::testing::Message() << device << type << format);
        EXPECT_EQ(
            ExpectPair({.type = type, .format = format, .device = device}),
            (Waits{2, 2}));
      }
    }
  }
}

TEST(BatchNormPairTest, InputsOfDifferentLayoutsAndEmptyBatchesAreTaken) {
  for (const bool device : {false, true}) {
    EXPECT_EQ(ExpectPair({.format = at::MemoryFormat::ChannelsLast,
                          .images = {2, 0, 1},
                          .mixed_layouts = true,
                          .device = device}),
              (Waits{2, 2}));
  }
}

TEST(BatchNormPairTest, WithoutRendezvousEachReportsItsMoments) {
  for (const bool device : {false, true}) {
    EXPECT_TRUE(ExpectPair({.global = false, .device = device}).empty());
  }
}

// A frozen layer, and a layer whose input needs no gradient, need no
// rendezvous.
TEST(BatchNormPairTest, OnlyWhoNeedsTheOthersMeetsThem) {
  for (const bool device : {false, true}) {
    EXPECT_EQ(ExpectPair({.device = device, .frozen = {"norm0"}}),
              (Waits{1, 1}));
    EXPECT_EQ(ExpectPair({.device = device, .frozen = {"norm1"}}),
              (Waits{1, 1}));
    EXPECT_EQ(ExpectPair({.device = device, .constant = {1}}), (Waits{2, 1}));
    EXPECT_EQ(ExpectPair({.device = device, .constant = {0}}), (Waits{2, 1}));
    EXPECT_TRUE(
        ExpectPair({.device = device, .frozen = {"norm0", "norm1"}}).empty());
  }
}

// Compares with LibTorch's operators in float64 on the images of all workers.
// The tolerance is that of single calls; see configurations_test.cc.
TEST(BatchNormPairTest, EqualsTheJoinedBatch) {
  const Setting setting{.type = at::kDouble, .images = {2, 1, 3}};
  const std::vector<Seen> parts = RunAll(setting, 2, PairTogether);
  std::vector<std::vector<at::Tensor>> inputs(2);
  std::vector<at::Tensor> y;
  std::vector<at::Tensor> upstream;
  std::vector<std::vector<at::Tensor>> dx(2);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (size_t i = 0; i < 2; ++i) {
      inputs[i].push_back(Input(setting, rank, i));
      dx[i].push_back(parts[rank].gradients[i]);
    }
    y.push_back(parts[rank].outputs[0]);
    upstream.push_back(Upstream(y.back(), rank, 0));
  }
  Norms net(2);
  net->to(at::kDouble);
  const at::Tensor x = at::cat(inputs[0]).requires_grad_();
  const at::Tensor z = at::cat(inputs[1]).requires_grad_();
  const at::Tensor wanted = at::relu(net->norms[0](x) + net->norms[1](z));
  wanted.backward(at::cat(upstream));
  EXPECT_TRUE(Close(at::cat(y), wanted, 1e-10));
  EXPECT_TRUE(Close(at::cat(dx[0]), x.grad(), 1e-10));
  EXPECT_TRUE(Close(at::cat(dx[1]), z.grad(), 1e-10));
  for (size_t p = 0; p < net->parameters().size(); ++p) {
    at::Tensor sum = parts[0].gradients[2 + p];
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      sum = sum + parts[rank].gradients[2 + p];
    }
    EXPECT_TRUE(Close(sum, net->parameters()[p].grad(), 1e-10));
  }
}

TEST(BatchNormPairTest, OutsideOfAScopeItIsLibTorchs) {
  Norms seen(2);
  Norms wanted(2);
  const std::vector<at::Tensor> x = {Input({}, 0, 0), Input({}, 0, 1)};
  const at::Tensor y = PairTogether(seen, x)[0];
  EXPECT_TRUE(
      at::equal(y, at::relu(wanted->norms[0](x[0]) + wanted->norms[1](x[1]))));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        at::equal(seen->norms[i]->running_var, wanted->norms[i]->running_var));
    EXPECT_EQ(seen->norms[i]->num_batches_tracked.item<int64_t>(), 1);
  }
}

TEST(BatchNormPairTest, ShapesThatCannotBeAddedAreRefusedByName) {
  Norms net(2);
  const auto binding = BatchNormBinding::Make(*net);
  StepContext step{.backend = &kernels::CpuBackend()};
  const BatchNormScope scope(*binding, &step);
  const std::vector<at::Tensor> x = {at::randn({2, kChannels, 4, 3}),
                                     at::randn({2, kChannels, 3, 4})};
  EXPECT_THAT(
      [&] { PairTogether(net, x); },
      ThrowsMessage<c10::Error>(HasSubstr("got Float [2, 5, 3, 4] to add")));
}

TEST(BatchNormPairTest, FailedRendezvousInterruptsTheStep) {
  for (const ReducePhase phase :
       {ReducePhase::kForward, ReducePhase::kBackward}) {
    Norms net(2);
    const auto binding = BatchNormBinding::Make(*net);
    NotingRendezvous rendezvous;
    rendezvous.fail = phase;
    StepContext step{.rendezvous = &rendezvous,
                     .backend = &kernels::CpuBackend()};
    const BatchNormScope scope(*binding, &step);
    const auto pass = [&net] {
      const at::Tensor x = Input({}, 0, 0).requires_grad_();
      PairTogether(net, {x, x})[0].sum().backward();
    };
    EXPECT_THROW(pass(), StepInterrupted);
  }
}

TEST(BatchNormEachTest, UpToFourShareAWait) {
  const std::vector<Waits> wanted = {{1, 1}, {2, 2},       {3, 3},
                                     {4, 4}, {4, 1, 1, 4}, {4, 2, 2, 4}};
  for (const bool device : {false, true}) {
    for (size_t layers = 1; layers <= wanted.size(); ++layers) {
      SCOPED_TRACE(layers);
      EXPECT_EQ(ExpectTheBitsOfOneByOne({.device = device}, layers,
                                        EachTogether, EachOneByOne),
                wanted[layers - 1]);
    }
  }
}

// One output is unused: its gradient is zero, and the others' gradients are the
// same as without it.
TEST(BatchNormEachTest, UnusedOutputHasAGradientOfZero) {
  ThreadRendezvous alone(1);
  const Forward first_of_two = [](Norms& net,
                                  const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{EachTogether(net, x)[0]};
  };
  const Seen seen = RunRank({}, 2, first_of_two, 0, alone.OfRank(0));
  ThreadRendezvous again(1);
  const Seen wanted = RunRank({}, 1, EachOneByOne, 0, again.OfRank(0));
  EXPECT_TRUE(at::equal(seen.gradients[0], wanted.gradients[0]));
  EXPECT_TRUE(at::equal(seen.gradients[1], at::zeros_like(seen.gradients[1])));
}

}  // namespace
}  // namespace cohort
