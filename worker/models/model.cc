#include "worker/models/model.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/permutation.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

nn::Conv2d Conv3x3(int64_t in, int64_t out) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}

class Cnn final : public Model {
 public:
  Cnn(int64_t channels, int64_t classes)
      : conv1_(register_module("conv1", Conv3x3(channels, 32))),
        bn1_(register_module("bn1", nn::BatchNorm2d(32))),
        conv2_(register_module("conv2", Conv3x3(32, 64))),
        bn2_(register_module("bn2", nn::BatchNorm2d(64))),
        conv3_(register_module("conv3", Conv3x3(64, 128))),
        bn3_(register_module("bn3", nn::BatchNorm2d(128))),
        fc_(register_module("fc", nn::Linear(128, classes))) {}

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = bn1_(conv1_(images)).relu_();
    x = torch::max_pool2d(x, 2);
    x = bn2_(conv2_(x)).relu_();
    x = torch::max_pool2d(x, 2);
    x = bn3_(conv3_(x)).relu_();
    return fc_(x.mean({2, 3}));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
  nn::Linear fc_;
};

class Smooth final : public Model {
 public:
  Smooth(int64_t channels, int64_t classes)
      : conv1_(register_module("conv1", Conv3x3(channels, 8))),
        bn1_(register_module("bn1", nn::BatchNorm2d(8))),
        conv2_(register_module("conv2", Conv3x3(8, 16))),
        bn2_(register_module("bn2", nn::BatchNorm2d(16))),
        conv3_(register_module("conv3", Conv3x3(16, 16))),
        bn3_(register_module("bn3", nn::BatchNorm2d(16))),
        fc_(register_module("fc", nn::Linear(16, classes))) {}

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = torch::tanh(bn1_(conv1_(images)));
    x = torch::avg_pool2d(x, 2);
    x = torch::tanh(bn2_(conv2_(x)));
    x = torch::avg_pool2d(x, 2);
    x = torch::tanh(bn3_(conv3_(x)));
    return fc_(x.mean({2, 3}));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
  nn::Linear fc_;
};

// Uniform in [-bound, bound), from a generator of our own: LibTorch's is
// shared by the process, and its stream differs between releases.
void FillUniform(const at::Tensor& tensor, double bound, SplitMix64& random) {
  at::Tensor flat = tensor.view(-1);
  auto* values = flat.data_ptr<float>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    values[i] = static_cast<float>(bound * (2 * random.Uniform() - 1));
  }
}

void Initialise(Model& model, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  uint64_t index = 0;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    SplitMix64 random(MixSeed(seed, 0x1417, index++));
    if (auto* conv = module->as<nn::Conv2d>()) {
      const auto fan_in = static_cast<double>(conv->weight.numel()) /
                          static_cast<double>(conv->weight.size(0));
      FillUniform(conv->weight, std::sqrt(6.0 / fan_in), random);
    } else if (auto* linear = module->as<nn::Linear>()) {
      const double bound =
          1.0 / std::sqrt(static_cast<double>(linear->weight.size(1)));
      FillUniform(linear->weight, bound, random);
      FillUniform(linear->bias, bound, random);
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<Model>> MakeModel(const ModelOptions& options) {
  if (options.channels < 1 || options.classes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model ", options.name, ": got ", options.channels, " channels and ",
        options.classes, " classes, want at least 1 each"));
  }
  std::shared_ptr<Model> model;
  if (options.name == "cnn") {
    model = std::make_shared<Cnn>(options.channels, options.classes);
  } else if (options.name == "smooth") {
    model = std::make_shared<Smooth>(options.channels, options.classes);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: got ", options.name, ", want cnn or smooth"));
  }
  Initialise(*model, options.seed);
  return model;
}

}  // namespace cohort
