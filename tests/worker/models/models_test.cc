// The networks that ship with the worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "kernels/backend.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/thread_rendezvous.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/models/model.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<Model> Make(const std::string& name, int64_t channels = 3,
                            int64_t classes = 10, int64_t width = 0) {
  auto model = MakeModel(
      {.name = name, .channels = channels, .classes = classes, .width = width});
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

int64_t ParametersOf(const Model& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

std::vector<std::string> NamesUnder(const Model& model,
                                    const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters()) {
    if (absl::StartsWith(item.key(), prefix)) names.push_back(item.key());
  }
  return names;
}

// One training step's forward and backward pass with the cohort's batch norm.
// Without a rendezvous each batch is normalised separately.
ModelOutput TrainOn(Model& model, const at::Tensor& images,
                    Rendezvous* rendezvous = nullptr) {
  model.train();
  const auto binding = OkValue(BatchNormBinding::Make(model));
  StepContext step{.rendezvous = rendezvous, .backend = &kernels::CpuBackend()};
  const BatchNormScope scope(binding, &step);
  ModelOutput output = model.forward(images);
  at::Tensor loss = output.logits.square().sum();
  for (const AuxiliaryOutput& head : output.auxiliary) {
    loss = loss + head.weight * head.logits.square().sum();
  }
  loss.backward();
  return output;
}

struct Known {
  std::string name;
  int64_t channels = 3;
  int64_t classes = 10;
  int64_t parameters = 0;
  size_t batch_norms = 0;
};

// ResNets: the counts that papers and libraries give (0.27 M, 0.85 M, 11.7 M,
// 25.6 M), exactly. The others, added up by hand: unet (width 16, 12 classes):
// encoder 432 + 2 304 + 4 608 + 9 216 + 18 432 +
//   36 864 + 73 728 + 147 456 + 294 912 + 589 824; way up with its biases
//   131 200 + 32 832 + 8 224 + 2 064; decoder 294 912 + 147 456 + 73 728 +
//   36 864 + 18 432 + 9 216 + 4 608 + 2 304; batch norm 2 * (2 * (16 + 32 +
//   64 + 128 + 256) + 2 * (128 + 64 + 32 + 16)); classifier 204.
// pspnet (12 classes): ResNet-50 without fc 23 508 032, pyramid 4 * (2048 *
//   512 + 1024), head 4096 * 512 * 9 + 1024, auxiliary 1024 * 256 * 9 + 512,
//   classifiers 513 * 12 + 257 * 12.
TEST(ModelsTest, ParameterCountsAreThoseOfTheArchitecture) {
  const std::vector<Known> all = {
      {"resnet20", 3, 10, 269'722, 19},
      {"resnet56", 3, 10, 853'018, 55},
      {"resnet18", 3, 1000, 11'689'512, 20},
      {"resnet50", 3, 1000, 25'557'032, 53},
      {"pspnet", 3, 12,
       23'508'032 + 4 * (2048 * 512 + 1024) + 4096 * 512 * 9 + 1024 +
           1024 * 256 * 9 + 512 + 513 * 12 + 257 * 12,
       53 + 6},
      {"pspnet18", 3, 12,
       11'176'512 + 4 * (512 * 128 + 256) + 1024 * 128 * 9 + 256 +
           256 * 64 * 9 + 128 + 129 * 12 + 65 * 12,
       20 + 6},
  };
  for (const Known& known : all) {
    const auto model = Make(known.name, known.channels, known.classes);
    EXPECT_EQ(ParametersOf(*model), known.parameters) << known.name;
    EXPECT_EQ(BatchNormBinding::Make(*model)->layers().size(),
              known.batch_norms)
        << known.name;
  }
  const auto unet = Make("unet", 3, 12, 16);
  EXPECT_EQ(ParametersOf(*unet), 432 + 2304 + 4608 + 9216 + 18432 + 36864 +
                                     73728 + 147456 + 294912 + 589824 + 131200 +
                                     32832 + 8224 + 2064 + 294912 + 147456 +
                                     73728 + 36864 + 18432 + 9216 + 4608 +
                                     2304 + 2 * (2 * 496 + 2 * 240) + 204);
}

TEST(ModelsTest, ResNetNamesAreTorchvisions) {
  const auto model = Make("resnet18");
  EXPECT_EQ(model->named_parameters().size(), 62U);
  EXPECT_THAT(NamesUnder(*model, "layer2.0."),
              ElementsAre("layer2.0.conv1.weight", "layer2.0.bn1.weight",
                          "layer2.0.bn1.bias", "layer2.0.conv2.weight",
                          "layer2.0.bn2.weight", "layer2.0.bn2.bias",
                          "layer2.0.downsample.0.weight",
                          "layer2.0.downsample.1.weight",
                          "layer2.0.downsample.1.bias"));
  EXPECT_THAT(NamesUnder(*model, "fc"), ElementsAre("fc.weight", "fc.bias"));
  EXPECT_THAT(NamesUnder(*model, "conv1"), ElementsAre("conv1.weight"));
  const auto larger = Make("resnet50");
  EXPECT_EQ(larger->named_parameters().size(), 161U);
  EXPECT_EQ(larger->named_parameters()["layer1.0.downsample.0.weight"].sizes(),
            at::IntArrayRef({256, 64, 1, 1}));
  EXPECT_EQ(larger->named_parameters()["layer4.2.conv3.weight"].sizes(),
            at::IntArrayRef({2048, 512, 1, 1}));
}

TEST(ModelsTest, BackboneOfPspNetHasTheNamesOfAResNet) {
  const auto model = Make("pspnet18", 3, 12);
  const auto backbone = NamesUnder(*model, "backbone.");
  const auto resnet = Make("resnet18");
  for (const std::string& name : backbone) {
    EXPECT_TRUE(resnet->named_parameters().contains(
        name.substr(std::string("backbone.").size())))
        << name;
  }
  EXPECT_EQ(backbone.size(), 60U);
}

TEST(ModelsTest, ClassifiersReturnOneScoreAClass) {
  for (const std::string name :
       {"cnn", "smooth", "resnet20", "resnet18", "resnet50"}) {
    const auto model = Make(name, 3, 7);
    model->eval();
    const torch::NoGradGuard no_grad;
    const ModelOutput output = model->forward(at::randn({2, 3, 32, 28}));
    EXPECT_EQ(output.logits.sizes(), at::IntArrayRef({2, 7})) << name;
    EXPECT_TRUE(output.auxiliary.empty());
  }
}

// A projection's batch norm shares a rendezvous with the main path's last one;
// so do the levels of a pyramid, and the two heads. Of 20, 53 and 26 layers, 3,
// 4 and 7 need no separate wait, in either pass.
TEST(ModelsTest, SiblingLayersShareARendezvous) {
  struct Expected {
    std::string name;
    size_t layers;
    size_t waits;
  };
  for (const Expected& expected :
       {Expected{"resnet18", 20, 17}, Expected{"resnet50", 53, 49},
        Expected{"pspnet18", 26, 19}}) {
    SCOPED_TRACE(expected.name);
    NotingRendezvous rendezvous;
    TrainOn(*Make(expected.name), at::randn({2, 3, 32, 32}), &rendezvous);
    EXPECT_EQ(rendezvous.keys.size(), 2 * expected.layers);
    EXPECT_EQ(rendezvous.together.size(), 2 * expected.waits);
  }
}

// The layout is kept from the images to the logits, and the results are the
// same. The test uses float64, where the order of additions hardly matters.
// Gradients are compared with their size, as small ones are differences of
// large numbers.
TEST(ModelsTest, ActivationsKeepTheLayoutOfTheImages) {
  for (const std::string name : {"unet", "pspnet18"}) {
    SCOPED_TRACE(name);
    torch::manual_seed(5);
    const at::Tensor images = at::randn({2, 3, 32, 48}, at::kDouble);
    std::vector<std::shared_ptr<Model>> models;
    std::vector<at::Tensor> logits;
    for (const at::MemoryFormat format :
         {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      models.push_back(Make(name, 3, 5, name == "unet" ? 4 : 0));
      models.back()->to(at::kDouble);
      torch::manual_seed(6);
      logits.push_back(
          TrainOn(*models.back(), images.contiguous(format)).logits);
      EXPECT_TRUE(logits.back().is_contiguous(format));
    }
    EXPECT_TRUE(at::allclose(logits[1], logits[0], 1e-8, 1e-8));
    const auto wanted = models[0]->named_parameters();
    for (const auto& item : models[1]->named_parameters()) {
      const at::Tensor& of = wanted[item.key()].grad();
      const double scale = of.abs().max().item<double>();
      EXPECT_TRUE(at::allclose(item.value().grad(), of, 1e-6, 1e-6 * scale))
          << item.key();
    }
  }
}

// Sizes that no pooling divides, down to a single pixel.
TEST(ModelsTest, SegmentersReturnLogitsAtAnyInputsSize) {
  for (const std::string name : {"unet", "pspnet18"}) {
    const auto model = Make(name, 3, 5, name == "unet" ? 2 : 0);
    model->eval();
    const torch::NoGradGuard no_grad;
    for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{
             {32, 48}, {33, 47}, {90, 121}, {5, 3}, {1, 1}}) {
      const at::Tensor logits =
          model->forward(at::randn({1, 3, height, width})).logits;
      EXPECT_EQ(logits.sizes(), at::IntArrayRef({1, 5, height, width})) << name;
      EXPECT_TRUE(logits.isfinite().all().item<bool>());
    }
  }
}

TEST(ModelsTest, OneImageWithOneElementAChannelTrainsAsTheLayersShift) {
  const auto model = Make("pspnet18", 3, 4);
  auto parameters = model->named_parameters();
  {
    const torch::NoGradGuard no_grad;
    parameters["pyramid.0.bn.bias"].fill_(0.5);
  }
  const ModelOutput output = TrainOn(*model, at::randn({1, 3, 40, 40}));
  EXPECT_EQ(output.logits.sizes(), at::IntArrayRef({1, 4, 40, 40}));
  // The layer's input does not matter, so the layers before it learn nothing.
  EXPECT_EQ(
      parameters["pyramid.0.conv.weight"].grad().abs().max().item<float>(),
      0.0F);
  EXPECT_GT(parameters["pyramid.0.bn.bias"].grad().abs().max().item<float>(),
            0.0F);
  for (const auto& item : parameters) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>())
        << item.key();
  }
}

TEST(ModelsTest, PspNetHasAnAuxiliaryHeadInTrainingOnly) {
  const auto model = Make("pspnet18", 3, 4);
  const ModelOutput output = TrainOn(*model, at::randn({2, 3, 24, 24}));
  ASSERT_EQ(output.auxiliary.size(), 1U);
  EXPECT_EQ(output.auxiliary[0].weight, 0.4);
  EXPECT_EQ(output.auxiliary[0].logits.sizes(), output.logits.sizes());
  model->eval();
  EXPECT_TRUE(model->forward(at::randn({2, 3, 24, 24})).auxiliary.empty());
}

// A part of a short assignment may be empty; the model must still make all of
// its batch-norm calls.
TEST(ModelsTest, EmptyBatchTrains) {
  for (const std::string name :
       {"cnn", "resnet20", "resnet18", "unet", "pspnet18"}) {
    const auto model = Make(name, 1, 3, name == "unet" ? 2 : 0);
    const ModelOutput output = TrainOn(*model, at::zeros({0, 1, 28, 28}));
    EXPECT_EQ(output.logits.size(0), 0) << name;
    EXPECT_EQ(output.logits.size(1), 3) << name;
  }
}

// Shortcut of option A: with weights that make a block's own branch vanish, the
// block passes on every second pixel and zeros for the new channels.
TEST(ModelsTest, ParameterFreeShortcutTakesEverySecondPixel) {
  const auto model = Make("resnet20", 1, 2);
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    if (absl::StrContains(item.key(), ".bn")) item.value().zero_();
  }
  model->eval();
  auto parameters = model->named_parameters();
  // fc reads channel 0 and channel 20, which only exists from layer2 on.
  parameters["fc.weight"].zero_();
  parameters["fc.weight"][0][0] = 1;
  parameters["fc.weight"][1][20] = 1;
  parameters["fc.bias"].zero_();
  // The stem passes the image on in channel 0.
  parameters["conv1.weight"].zero_();
  parameters["conv1.weight"][0][0][1][1] = 1;
  const at::Tensor images = at::rand({1, 1, 8, 8});
  const at::Tensor logits = model->forward(images).logits;
  // Twice every second pixel, of 8x8; eps of the stem's batch norm is 1e-5.
  const float wanted =
      images.slice(2, 0, 8, 4).slice(3, 0, 8, 4).mean().item<float>();
  EXPECT_NEAR(logits[0][0].item<float>(), wanted, 1e-4);
  EXPECT_EQ(logits[0][1].item<float>(), 0.0F);
}

TEST(ModelsTest, InitialValuesDependOnTheSeedAlone) {
  for (const std::string name : {"cnn", "resnet20", "unet"}) {
    ModelOptions options{
        .name = name, .width = name == "unet" ? 4 : 0, .seed = 3};
    torch::manual_seed(1);
    const auto a = (*MakeModel(options))->parameters();
    torch::manual_seed(2);
    const auto b = (*MakeModel(options))->parameters();
    options.seed = 4;
    const auto c = (*MakeModel(options))->parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << name << " " << i;
    }
    EXPECT_FALSE(at::equal(a[0], c[0])) << name;
  }
}

// U(-b, b): no value beyond b, and a deviation of b/sqrt(3), which 18432 and
// more values match to a few percent.
TEST(ModelsTest, InitialValuesHaveTheStatedBounds) {
  const auto resnet = Make("resnet20");
  const at::Tensor conv = resnet->named_parameters()["layer3.0.conv1.weight"];
  const double bound = std::sqrt(6.0 / (32 * 9));
  EXPECT_LE(conv.abs().max().item<double>(), bound);
  EXPECT_NEAR(conv.std().item<double>(), bound / std::sqrt(3.0), 0.03 * bound);
  const auto unet = Make("unet", 3, 4, 8);
  const at::Tensor up = unet->named_parameters()["up.0.weight"];
  EXPECT_EQ(up.sizes(), at::IntArrayRef({128, 64, 2, 2}));
  EXPECT_LE(up.abs().max().item<double>(), 1 / 16.0);
  EXPECT_NEAR(up.std().item<double>(), 1 / std::sqrt(3 * 256.0), 2e-3);
}

TEST(ModelsTest, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(MakeModel({.name = "vgg"}),
              IsError(kInvalidArgument, "--model: got vgg"));
}

TEST(ModelsTest, WidthIsCheckedAndOnlyForUnet) {
  EXPECT_THAT(MakeModel({.name = "cnn", .width = 8}),
              IsError(kInvalidArgument, "got 8 for --model=cnn"));
  EXPECT_THAT(MakeModel({.name = "unet", .width = 1000}),
              IsError(kInvalidArgument, "--width: got 1000, want 1 to 512"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      MakeModel({.name = "unet", .width = -1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      MakeModel({.name = "cnn", .classes = 0}).status()));
}

}  // namespace
}  // namespace cohort
