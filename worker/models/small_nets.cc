#include "worker/models/small_nets.h"

#include <torch/torch.h>

#include <array>

#include "worker/batch_norm/functional.h"
#include "worker/models/layers.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

// Three convolutions of 3x3 with batch norm, and a linear layer.
class SmallNet : public Model {
 protected:
  SmallNet(int64_t channels, std::array<int64_t, 3> widths, int64_t classes)
      : conv1_(
            register_module("conv1", Conv({.in = channels, .out = widths[0]}))),
        bn1_(register_module("bn1", nn::BatchNorm2d(widths[0]))),
        conv2_(register_module("conv2",
                               Conv({.in = widths[0], .out = widths[1]}))),
        bn2_(register_module("bn2", nn::BatchNorm2d(widths[1]))),
        conv3_(register_module("conv3",
                               Conv({.in = widths[1], .out = widths[2]}))),
        bn3_(register_module("bn3", nn::BatchNorm2d(widths[2]))),
        fc_(register_module("fc", nn::Linear(widths[2], classes))) {}

  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
  nn::Linear fc_;
};

class Cnn final : public SmallNet {
 public:
  Cnn(int64_t channels, int64_t classes)
      : SmallNet(channels, {32, 64, 128}, classes) {}

  ModelOutput forward(const at::Tensor& images) override {
    at::Tensor x = BatchNormRelu(bn1_, conv1_(images));
    x = torch::max_pool2d(x, 2);
    x = BatchNormRelu(bn2_, conv2_(x));
    x = torch::max_pool2d(x, 2);
    x = BatchNormRelu(bn3_, conv3_(x));
    return {.logits = fc_(x.mean({2, 3}))};
  }
};

class Smooth final : public SmallNet {
 public:
  Smooth(int64_t channels, int64_t classes)
      : SmallNet(channels, {8, 16, 16}, classes) {}

  ModelOutput forward(const at::Tensor& images) override {
    at::Tensor x = torch::tanh(BatchNorm(bn1_, conv1_(images)));
    x = torch::avg_pool2d(x, 2);
    x = torch::tanh(BatchNorm(bn2_, conv2_(x)));
    x = torch::avg_pool2d(x, 2);
    x = torch::tanh(BatchNorm(bn3_, conv3_(x)));
    return {.logits = fc_(x.mean({2, 3}))};
  }
};

}  // namespace

std::shared_ptr<Model> MakeCnn(int64_t channels, int64_t classes) {
  return std::make_shared<Cnn>(channels, classes);
}

std::shared_ptr<Model> MakeSmooth(int64_t channels, int64_t classes) {
  return std::make_shared<Smooth>(channels, classes);
}

}  // namespace cohort
