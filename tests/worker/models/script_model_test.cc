// Users' networks as TorchScript files. The files are written here in the form
// that torch.jit.script and torch.jit.trace give them; tests/integration reads
// files written by PyTorch itself.
#include "worker/models/script_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "kernels/backend.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/thread_rendezvous.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr int64_t kClasses = 3;

constexpr char kNormCall[] =
    "torch.batch_norm(x, self.weight, self.bias, self.running_mean, "
    "self.running_var, self.training, 0.1, 0.001, True)";

torch::jit::Module NewModule(const std::string& name) {
  torch::jit::Module module(name);
  module.register_attribute("training", c10::BoolType::get(), true);
  return module;
}

at::Tensor Trainable(const at::Tensor& values) {
  return values.detach().requires_grad_();
}

// The attributes of torch.nn.BatchNorm2d, with `call` as its forward.
torch::jit::Module NormModule(const std::string& call, int64_t channels) {
  torch::jit::Module norm = NewModule("Norm");
  norm.register_parameter("weight", Trainable(torch::rand({channels}) + 0.5),
                          false);
  norm.register_parameter("bias", Trainable(torch::rand({channels})), false);
  norm.register_buffer("running_mean", torch::rand({channels}));
  norm.register_buffer("running_var", torch::rand({channels}) + 0.5);
  norm.register_buffer("num_batches_tracked", torch::tensor(int64_t{4}));
  norm.define("def forward(self, x):\n  return " + call + "\n");
  return norm;
}

// Convolution, batch norm, mean over pixels. `body` is the body of forward.
struct Source {
  std::string norm = kNormCall;
  std::string body =
      "  x = torch.conv2d(x, self.kernel)\n"
      "  return self.bn.forward(x).relu().mean([2, 3])\n";
};

torch::jit::Module NetModule(const Source& source) {
  torch::jit::Module net = NewModule("Net");
  net.register_parameter(
      "kernel", Trainable(torch::rand({kClasses, 1, 3, 3}) - 0.5), false);
  net.register_module("bn", NormModule(source.norm, kClasses));
  net.define("def forward(self, x):\n" + source.body);
  return net;
}

class ScriptModelTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<Model>> Load(const torch::jit::Module& net) {
    net.save(File());
    return LoadFile();
  }

  absl::StatusOr<std::shared_ptr<Model>> LoadFile() {
    return MakeModel({.name = File(),
                      .channels = 1,
                      .classes = kClasses,
                      .warn = [this](const std::string& text) {
                        warnings_.push_back(text);
                      }});
  }

  // The text of the refusal of one whose batch norm is called with `changed` in
  // place of `original`.
  std::string RefusedWith(const std::string& original,
                          const std::string& changed) {
    return Refused(
        {.norm = absl::StrReplaceAll(kNormCall, {{original, changed}})});
  }

  // That of one with a statement before what it returns.
  std::string RefusedAfter(const std::string& statement) {
    return Refused({.body = "  " + statement +
                            "\n  return torch.conv2d(x, self.kernel)"
                            ".mean([2, 3])\n"});
  }

  // The text of the refusal.
  std::string Refused(const Source& source) {
    const absl::Status status = Load(NetModule(source)).status();
    EXPECT_THAT(status, IsError(kInvalidArgument, "--model=" + File() + ": "));
    return std::string(status.message());
  }

  std::string File() const { return dir_.File("net.pt"); }

  const TempDir dir_;
  std::vector<std::string> warnings_;
};

TEST_F(ScriptModelTest, ParametersAndLayersKeepTheirNames) {
  const auto model = OkValue(Load(NetModule({})));
  EXPECT_THAT(model->named_parameters().keys(),
              ElementsAre("kernel", "bn.weight", "bn.bias"));
  EXPECT_THAT(model->named_buffers().keys(),
              ElementsAre("bn.running_mean", "bn.running_var",
                          "bn.num_batches_tracked"));
  const auto binding = BatchNormBinding::Make(*model);
  ASSERT_EQ(binding->layers().size(), 1U);
  EXPECT_EQ(binding->layers()[0].name, "bn");
  EXPECT_EQ(binding->layers()[0].channels, kClasses);
  EXPECT_EQ(binding->layers()[0].epsilon, 1e-3);
  EXPECT_EQ(binding->layers()[0].momentum, 0.1);
  EXPECT_TRUE(binding->layers()[0].affine);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(ScriptModelTest, ValuesAndStatisticsAreTheFiles) {
  const torch::jit::Module net = NetModule({});
  const auto model = OkValue(Load(net));
  const torch::jit::Module bn = net.attr("bn").toModule();
  EXPECT_TRUE(at::equal(model->named_parameters()["bn.weight"],
                        bn.attr("weight").toTensor()));
  EXPECT_TRUE(at::equal(model->named_buffers()["bn.running_var"],
                        bn.attr("running_var").toTensor()));
  EXPECT_EQ(BatchNormBinding::Make(*model)->Statistics()[0].num_batches_tracked,
            4);
}

// After a few runs the executor would replace the graph by an optimised one,
// whose batch norm is another operator.
TEST_F(ScriptModelTest, EveryStepReachesTheRendezvous) {
  const auto model = OkValue(Load(NetModule({})));
  const auto binding = BatchNormBinding::Make(*model);
  NotingRendezvous rendezvous;
  for (size_t step = 1; step <= 4; ++step) {
    StepContext context{.rendezvous = &rendezvous,
                        .backend = &kernels::CpuBackend()};
    const BatchNormScope scope(*binding, &context);
    model->forward(at::rand({2, 1, 6, 6})).logits.square().sum().backward();
    EXPECT_THAT(context.calls, ElementsAre(1));
    EXPECT_EQ(rendezvous.together.size(), 2 * step);
  }
}

TEST_F(ScriptModelTest, GradientsEqualThoseOfTheSameNetworkInLibTorch) {
  const torch::jit::Module net = NetModule({});
  const auto model = OkValue(Load(net));
  const at::Tensor x = at::rand({3, 1, 7, 7});
  const auto binding = BatchNormBinding::Make(*model);
  StepContext context{.backend = &kernels::CpuBackend()};
  {
    const BatchNormScope scope(*binding, &context);
    model->forward(x).logits.square().sum().backward();
  }
  const torch::jit::Module bn = net.attr("bn").toModule();
  const at::Tensor kernel =
      net.attr("kernel").toTensor().detach().to(at::kDouble).requires_grad_();
  at::batch_norm(at::conv2d(x.to(at::kDouble), kernel),
                 bn.attr("weight").toTensor().detach().to(at::kDouble),
                 bn.attr("bias").toTensor().detach().to(at::kDouble), {}, {},
                 true, 0.1, 1e-3, false)
      .relu()
      .mean({2, 3})
      .square()
      .sum()
      .backward();
  // Sums of 75 float32 products of order 1.
  EXPECT_TRUE(
      at::allclose(model->named_parameters()["kernel"].grad().to(at::kDouble),
                   kernel.grad(), 1e-4, 1e-5));
}

TEST_F(ScriptModelTest, TrainAndEvalReachTheScript) {
  const auto model = OkValue(Load(NetModule({})));
  auto binding = BatchNormBinding::Make(*model);
  ExpectOk(binding->LoadStatistics({{{.mean = {1, 2, 3},
                                      .variance = {4, 5, 6},
                                      .num_batches_tracked = 9}}}));
  model->eval();
  const at::Tensor x = at::rand({2, 1, 6, 6});
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(x).logits;
  auto parameters = model->named_parameters();
  const at::Tensor wanted =
      at::batch_norm(at::conv2d(x, parameters["kernel"]),
                     parameters["bn.weight"], parameters["bn.bias"],
                     at::tensor({1.0F, 2.0F, 3.0F}),
                     at::tensor({4.0F, 5.0F, 6.0F}), false, 0.1, 1e-3, false)
          .relu()
          .mean({2, 3});
  EXPECT_TRUE(at::allclose(logits, wanted, 1e-5, 1e-6));
  model->train();
  EXPECT_FALSE(at::allclose(model->forward(x).logits, wanted, 1e-2, 1e-2));
}

TEST_F(ScriptModelTest, InterruptedStepLeavesTheInterpreterWithItsType) {
  const auto model = OkValue(Load(NetModule({})));
  const auto binding = BatchNormBinding::Make(*model);
  for (const ReducePhase phase :
       {ReducePhase::kForward, ReducePhase::kBackward}) {
    NotingRendezvous rendezvous;
    rendezvous.fail = phase;
    StepContext context{.rendezvous = &rendezvous,
                        .backend = &kernels::CpuBackend()};
    const BatchNormScope scope(*binding, &context);
    EXPECT_THAT(
        [&] {
          model->forward(at::rand({2, 1, 6, 6})).logits.sum().backward();
        },
        ThrowsMessage<StepInterrupted>("ABORTED: rank 3 is lost"));
  }
}

TEST_F(ScriptModelTest, ConstantTrainingInputIsRefused) {
  for (const char* constant : {"False", "True"}) {
    const std::string text = RefusedWith("self.training", constant);
    EXPECT_THAT(text, HasSubstr("aten::batch_norm %"));
    EXPECT_THAT(text, HasSubstr("batch norm bn: its input `training`"));
    EXPECT_THAT(text, HasSubstr("torch.jit.script"));
  }
}

TEST_F(ScriptModelTest, FrozenModulesAreRefused) {
  torch::jit::Module net = NetModule({});
  net.eval();
  EXPECT_THAT(Load(torch::jit::freeze(net, torch::nullopt, false)),
              IsError(kInvalidArgument, "its weight is a constant"));
  EXPECT_THAT(Load(torch::jit::freeze(net, torch::nullopt, true)),
              IsError(kInvalidArgument, "it has no parameters"));
}

TEST_F(ScriptModelTest, ComputedOrForeignTensorsAreRefused) {
  EXPECT_THAT(RefusedWith("self.weight", "self.weight * 2"),
              HasSubstr("batch norm: its weight is computed"));
  EXPECT_THAT(RefusedWith("self.weight", "self.bias"),
              HasSubstr("got bn.bias as its weight"));
  EXPECT_THAT(Refused({.norm = "torch.batch_norm(x, None, None, None, None, "
                               "self.training, 0.1, 0.001, True)"}),
              HasSubstr("got the tensors [] of modules []"));
}

TEST_F(ScriptModelTest, OtherFormsOfBatchNormAreRefused) {
  EXPECT_THAT(
      Refused({.norm = "torch.native_batch_norm(x, self.weight, self.bias, "
                       "self.running_mean, self.running_var, self.training, "
                       "0.1, 0.001)[0]"}),
      HasSubstr("aten::native_batch_norm %"));
}

TEST_F(ScriptModelTest, StateBetweenCallsIsRefused) {
  EXPECT_THAT(RefusedAfter("self.kernel.mul_(0.9)"), HasSubstr("aten::mul_ %"));
  EXPECT_THAT(RefusedAfter("self.bn.running_mean[0].add_(1)"),
              HasSubstr("writes to bn.running_mean"));
  EXPECT_THAT(RefusedAfter("self.kernel = self.kernel * 0.9"),
              HasSubstr("sets kernel"));
}

TEST_F(ScriptModelTest, CounterOfALayerMayCount) {
  Source source;
  source.body =
      "  self.bn.num_batches_tracked.add_(1)\n"
      "  x = torch.conv2d(x, self.kernel)\n"
      "  return self.bn.forward(x).mean([2, 3])\n";
  EXPECT_TRUE(Load(NetModule(source)).ok());
}

TEST_F(ScriptModelTest, ConstantDropoutIsAWarning) {
  Source source;
  source.body =
      "  x = torch.conv2d(x, self.kernel)\n"
      "  return torch.dropout(self.bn.forward(x).mean([2, 3]), 0.5, False)\n";
  ASSERT_TRUE(Load(NetModule(source)).ok());
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], HasSubstr("aten::dropout %"));
  EXPECT_THAT(warnings_[0], HasSubstr("the constant false, so it never drops"));
}

TEST_F(ScriptModelTest, OtherBuffersAreFrozenParametersOrStayInTheFile) {
  torch::jit::Module with = NewModule("With");
  with.register_parameter("kernel", Trainable(torch::rand({kClasses, 1, 3, 3})),
                          false);
  with.register_buffer("scale", torch::full({kClasses}, 2.0F));
  with.register_buffer("steps", torch::tensor(int64_t{3}));
  with.define(
      "def forward(self, x):\n"
      "  return torch.conv2d(x, self.kernel).mean([2, 3]) * self.scale + "
      "self.steps\n");
  const auto model = OkValue(Load(with));
  auto parameters = model->named_parameters();
  ASSERT_TRUE(parameters.contains("scale"));
  EXPECT_FALSE(parameters["scale"].requires_grad());
  EXPECT_TRUE(parameters["kernel"].requires_grad());
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], HasSubstr("not exported: steps"));
  // The script reads values written to the parameter.
  const torch::NoGradGuard no_grad;
  const at::Tensor x = at::rand({1, 1, 4, 4});
  const at::Tensor before = model->forward(x).logits - 3;
  parameters["scale"].mul_(2);
  EXPECT_TRUE(at::allclose(model->forward(x).logits - 3, 2 * before));
}

TEST_F(ScriptModelTest, TupleAndDictionaryHoldTheLogits) {
  const std::string scores = "torch.conv2d(x, self.kernel).mean([2, 3])";
  const auto tuple =
      OkValue(Load(NetModule({.body = "  return " + scores + ", x\n"})));
  EXPECT_EQ(tuple->forward(at::rand({2, 1, 5, 5})).logits.sizes(),
            at::IntArrayRef({2, kClasses}));
  const auto dict = OkValue(Load(
      NetModule({.body = "  return {'aux': x, 'out': " + scores + "}\n"})));
  EXPECT_EQ(dict->forward(at::rand({2, 1, 5, 5})).logits.sizes(),
            at::IntArrayRef({2, kClasses}));
}

TEST_F(ScriptModelTest, OtherSignaturesAreRefused) {
  EXPECT_THAT(Refused({.body = "  return 3\n"}),
              HasSubstr("forward returns int, want a tensor"));
  torch::jit::Module two = NewModule("Two");
  two.define("def forward(self, x, y):\n  return x + y\n");
  EXPECT_THAT(Load(two), IsError(kInvalidArgument, "that takes one tensor"));
}

TEST_F(ScriptModelTest, AnotherClassCountIsNamed) {
  const auto model =
      OkValue(Load(NetModule({.body = "  return x.mean([2, 3])\n"})));
  EXPECT_THAT(
      [&] {
        model->forward(at::rand({2, 1, 5, 5}));
      },
      ThrowsMessage<c10::Error>(HasSubstr("shape [2, 1], want [2, 3]")));
}

TEST_F(ScriptModelTest, AFileThatIsNoneIsRefused) {
  EXPECT_THAT(LoadFile(), IsError(kNotFound, "net.pt: no such file"));
  WriteText(File(), "weights");
  EXPECT_THAT(LoadFile(),
              IsError(kInvalidArgument, "net.pt: not a TorchScript file"));
  // A file of torch.save(), which is an archive of the same kind.
  torch::save(torch::ones({3}), File());
  EXPECT_EQ(LoadFile().status().code(), kInvalidArgument);
}

TEST_F(ScriptModelTest, ParametersOverTheSameMemoryAreOne) {
  torch::jit::Module net = NewModule("Tied");
  const at::Tensor shared = Trainable(torch::rand({kClasses, 1, 3, 3}));
  net.register_parameter("kernel", shared, false);
  net.register_parameter("again", shared, false);
  net.define(
      "def forward(self, x):\n"
      "  return (torch.conv2d(x, self.kernel) * 2 + torch.conv2d(x, "
      "self.again)).mean([2, 3])\n");
  const auto model = OkValue(Load(net));
  auto parameters = model->named_parameters();
  EXPECT_TRUE(parameters["kernel"].is_same(parameters["again"]));
  const at::Tensor x = at::ones({1, 1, 3, 3});
  model->forward(x).logits.sum().backward();
  EXPECT_TRUE(at::equal(parameters["kernel"].grad(),
                        at::full({kClasses, 1, 3, 3}, 3.0F)));
}

}  // namespace
}  // namespace cohort
