// Activation checkpointing: a segment of the model is computed again in the
// backward pass, without an effect on the other workers or the statistics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/fakes/thread_rendezvous.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/functional.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Segment = std::function<at::Tensor(const at::Tensor&)>;
using CallKey = std::tuple<int32_t, int32_t, ReducePhase>;

struct SavedSegment : torch::CustomClassHolder {
  Segment segment;
  RecomputeScope::Mark mark;
  bool on_another_thread = false;
};

// Like torch.utils.checkpoint in Python: keeps the input, and computes the
// segment again when its gradient is needed.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const Segment& segment, bool on_another_thread) {
    auto saved = c10::make_intrusive<SavedSegment>();
    saved->segment = segment;
    saved->on_another_thread = on_another_thread;
    saved->mark = RecomputeScope::Here();
    ctx->save_for_backward({x});
    ctx->saved_data["segment"] = c10::IValue::make_capsule(std::move(saved));
    return segment(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = c10::static_intrusive_pointer_cast<SavedSegment>(
        ctx->saved_data["segment"].toCapsule());
    const at::Tensor x =
        ctx->get_saved_variables()[0].detach().requires_grad_();
    const auto recompute = [&] {
      const RecomputeScope again(saved->mark);
      at::Tensor y;
      {
        const torch::AutoGradMode on(true);
        y = saved->segment(x);
      }
      torch::autograd::backward({y}, {grads[0]});
    };
    if (saved->on_another_thread) {
      // On another thread, as autograd does for a GPU.
      std::thread(recompute).join();
    } else {
      recompute();
    }
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

enum class Mode { kPlain, kCheckpointed, kOtherThread };

// A shared layer before, within (twice) and after the segment.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 3, 1)));
    shared = register_module("shared", torch::nn::BatchNorm2d(3));
    inner = register_module("inner", torch::nn::BatchNorm2d(3));
  }

  at::Tensor Middle(const at::Tensor& x) {
    at::Tensor y = torch::tanh(shared(conv(x)));
    y = BatchNormRelu(inner, y);
    // A segment within the segment.
    y = Maybe([this](const at::Tensor& z) { return shared(torch::tanh(z)); },
              y);
    return BatchNormAddRelu(inner, y, x);
  }

  at::Tensor Maybe(const Segment& segment, const at::Tensor& x) {
    if (mode == Mode::kPlain) return segment(x);
    return Checkpoint::apply(x, segment, mode == Mode::kOtherThread);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y =
        Maybe([this](const at::Tensor& z) { return Middle(z); }, shared(x));
    return shared(y);
  }

  Mode mode = Mode::kPlain;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d shared{nullptr};
  torch::nn::BatchNorm2d inner{nullptr};
};
TORCH_MODULE(Net);

struct WorkerRun {
  at::Tensor dx;
  std::vector<at::Tensor> gradients;
  std::vector<int32_t> calls;
  std::vector<CallKey> keys;
};

std::vector<WorkerRun> RunWorkers(Mode mode) {
  constexpr size_t kWorkers = 2;
  std::vector<at::Tensor> inputs;
  torch::manual_seed(2);
  for (size_t rank = 0; rank < kWorkers; ++rank) {
    inputs.push_back(at::randn({2 + static_cast<int64_t>(rank), 3, 4, 4}));
  }
  ThreadRendezvous rendezvous(kWorkers);
  std::vector<Net> nets;
  for (size_t rank = 0; rank < kWorkers; ++rank) nets.push_back(Net());
  std::vector<WorkerRun> runs(kWorkers);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      Net& net = nets[rank];
      net->mode = mode;
      const auto binding = BatchNormBinding::Make(*net);
      NotingRendezvous noting(&rendezvous.OfRank(rank));
      StepContext step{.rendezvous = &noting,
                       .backend = &kernels::CpuBackend()};
      const BatchNormScope scope(*binding, &step);
      const at::Tensor x = inputs[rank].clone().requires_grad_();
      net->forward(x).square().mean().backward();
      runs[rank].dx = x.grad();
      for (const at::Tensor& parameter : net->parameters()) {
        runs[rank].gradients.push_back(parameter.grad());
      }
      runs[rank].calls = step.calls;
      runs[rank].keys = noting.keys;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return runs;
}

TEST(RecomputeScopeTest, CheckpointedSegmentsGiveTheSameBits) {
  const std::vector<WorkerRun> plain = RunWorkers(Mode::kPlain);
  for (const Mode mode : {Mode::kCheckpointed, Mode::kOtherThread}) {
    const std::vector<WorkerRun> checkpointed = RunWorkers(mode);
    for (size_t rank = 0; rank < plain.size(); ++rank) {
      EXPECT_TRUE(at::equal(checkpointed[rank].dx, plain[rank].dx));
      ASSERT_EQ(checkpointed[rank].gradients.size(), 6U);
      // Gradients of a layer with several calls are added up in another order.
      for (size_t i = 0; i < plain[rank].gradients.size(); ++i) {
        EXPECT_TRUE(at::allclose(checkpointed[rank].gradients[i],
                                 plain[rank].gradients[i], 1e-5, 1e-6))
            << "parameter " << i;
      }
    }
  }
}

TEST(RecomputeScopeTest, EveryCallMeetsTheOthersOnceForwardAndOnceBackward) {
  const std::vector<WorkerRun> plain = RunWorkers(Mode::kPlain);
  for (const Mode mode : {Mode::kCheckpointed, Mode::kOtherThread}) {
    const std::vector<WorkerRun> checkpointed = RunWorkers(mode);
    for (size_t rank = 0; rank < plain.size(); ++rank) {
      EXPECT_THAT(checkpointed[rank].calls, ElementsAre(4, 2));
      EXPECT_EQ(checkpointed[rank].keys, plain[rank].keys);
      EXPECT_EQ(checkpointed[rank].keys.size(), 12U);
    }
  }
}

TEST(RecomputeScopeTest, LocalMomentsAreReportedOnce) {
  torch::nn::BatchNorm1d norm(2);
  const auto binding = BatchNormBinding::Make(*norm);
  StepContext step{.backend = &kernels::CpuBackend()};
  const at::Tensor x = at::randn({4, 2});
  {
    const BatchNormScope scope(*binding, &step);
    const RecomputeScope::Mark mark = RecomputeScope::Here();
    const at::Tensor first = norm->forward(x);
    norm->forward(x + 1);
    {
      const RecomputeScope again(mark);
      EXPECT_TRUE(at::equal(norm->forward(x), first));
      // Normalised by the recorded moments, whatever the input.
      EXPECT_FALSE(at::equal(norm->forward(x), first));
    }
    norm->forward(x + 2);
  }
  EXPECT_THAT(step.calls, ElementsAre(3));
  ASSERT_EQ(step.moments.size(), 3U);
  EXPECT_EQ(step.moments[2].call, 2);
}

TEST(RecomputeScopeTest, RepeatingACallThatWasNotMadeIsRefused) {
  torch::nn::BatchNorm1d norm(2);
  const auto binding = BatchNormBinding::Make(*norm);
  StepContext step{.backend = &kernels::CpuBackend()};
  const BatchNormScope scope(*binding, &step);
  const RecomputeScope again(RecomputeScope::Here());
  EXPECT_THAT(
      [&] {
        norm->forward(at::randn({4, 2}));
      },
      ThrowsMessage<c10::Error>(HasSubstr("call 0 is recomputed")));
}

TEST(RecomputeScopeTest, OutsideAStepItDoesNothing) {
  torch::nn::BatchNorm1d norm(2);
  ASSERT_TRUE(BatchNormBinding::Make(*norm).ok());
  const RecomputeScope again(RecomputeScope::Here());
  norm->forward(at::randn({4, 2}));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
}

}  // namespace
}  // namespace cohort
