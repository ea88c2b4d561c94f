#include "worker/models/small_nets.h"

#include <torch/torch.h>

#include "worker/batch_norm/functional.h"
#include "worker/models/layers.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

class Cnn final : public Model {
 public:
  Cnn(int64_t channels, int64_t classes)
      : conv1_(register_module("conv1", Conv({.in = channels, .out = 32}))),
        bn1_(register_module("bn1", nn::BatchNorm2d(32))),
        conv2_(register_module("conv2", Conv({.in = 32, .out = 64}))),
        bn2_(register_module("bn2", nn::BatchNorm2d(64))),
        conv3_(register_module("conv3", Conv({.in = 64, .out = 128}))),
        bn3_(register_module("bn3", nn::BatchNorm2d(128))),
        fc_(register_module("fc", nn::Linear(128, classes))) {}

  ModelOutput forward(const at::Tensor& images) override {
    at::Tensor x = BatchNormRelu(bn1_, conv1_(images));
    x = torch::max_pool2d(x, 2);
    x = BatchNormRelu(bn2_, conv2_(x));
    x = torch::max_pool2d(x, 2);
    x = BatchNormRelu(bn3_, conv3_(x));
    return {.logits = fc_(x.mean({2, 3}))};
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
      : conv1_(register_module("conv1", Conv({.in = channels, .out = 8}))),
        bn1_(register_module("bn1", nn::BatchNorm2d(8))),
        conv2_(register_module("conv2", Conv({.in = 8, .out = 16}))),
        bn2_(register_module("bn2", nn::BatchNorm2d(16))),
        conv3_(register_module("conv3", Conv({.in = 16, .out = 16}))),
        bn3_(register_module("bn3", nn::BatchNorm2d(16))),
        fc_(register_module("fc", nn::Linear(16, classes))) {}

  ModelOutput forward(const at::Tensor& images) override {
    at::Tensor x = torch::tanh(BatchNorm(bn1_, conv1_(images)));
    x = torch::avg_pool2d(x, 2);
    x = torch::tanh(BatchNorm(bn2_, conv2_(x)));
    x = torch::avg_pool2d(x, 2);
    x = torch::tanh(BatchNorm(bn3_, conv3_(x)));
    return {.logits = fc_(x.mean({2, 3}))};
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

}  // namespace

std::shared_ptr<Model> MakeCnn(int64_t channels, int64_t classes) {
  return std::make_shared<Cnn>(channels, classes);
}

std::shared_ptr<Model> MakeSmooth(int64_t channels, int64_t classes) {
  return std::make_shared<Smooth>(channels, classes);
}

}  // namespace cohort
