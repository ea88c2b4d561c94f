#include "worker/models/resnet.h"

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "worker/batch_norm/functional.h"
#include "worker/models/layers.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

// Ratio of a bottleneck's output channels to those of its 3x3 convolution.
constexpr int64_t kExpansion = 4;

struct BlockShape {
  int64_t in = 0;
  // Channels of the 3x3 convolutions.
  int64_t planes = 0;
  int64_t stride = 1;
  int64_t dilation = 1;
  bool bottleneck = false;
  // Kind of a shortcut that changes the shape: a projection (option B) or, if
  // false, one without parameters (option A).
  bool projection = true;

  int64_t out() const { return bottleneck ? planes * kExpansion : planes; }
};

// relu(bnK(convK(... relu(bn1(conv1(x))))) + shortcut(x)).
class BlockImpl final : public nn::Module {
 public:
  explicit BlockImpl(const BlockShape& shape) : shape_(shape) {
    const int64_t p = shape.planes;
    const int64_t s = shape.stride;
    const int64_t d = shape.dilation;
    if (shape.bottleneck) {
      Add({.in = shape.in, .out = p, .kernel = 1});
      Add({.in = p, .out = p, .stride = s, .dilation = d});
      Add({.in = p, .out = shape.out(), .kernel = 1});
    } else {
      Add({.in = shape.in, .out = p, .stride = s, .dilation = d});
      Add({.in = p, .out = p, .dilation = d});
    }
    if (ChangesShape() && shape.projection) {
      projection_conv_ =
          Conv({.in = shape.in, .out = shape.out(), .kernel = 1, .stride = s});
      projection_norm_ = nn::BatchNorm2d(shape.out());
      register_module("downsample",
                      nn::Sequential(projection_conv_, projection_norm_));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (size_t i = 0; i + 1 < convs_.size(); ++i) {
      y = BatchNormRelu(norms_[i], convs_[i](y));
    }
    y = convs_.back()(y);
    if (ChangesShape() && shape_.projection) {
      return BatchNormPairAddRelu(norms_.back(), y, projection_norm_,
                                  projection_conv_(x));
    }
    return BatchNormAddRelu(norms_.back(), y, Shortcut(x));
  }

 private:
  void Add(const ConvShape& shape) {
    const size_t number = convs_.size() + 1;
    convs_.push_back(
        register_module(absl::StrCat("conv", number), Conv(shape)));
    norms_.push_back(register_module(absl::StrCat("bn", number),
                                     nn::BatchNorm2d(shape.out)));
  }

  bool ChangesShape() const {
    return shape_.stride != 1 || shape_.in != shape_.out();
  }

  // A shortcut without parameters.
  at::Tensor Shortcut(const at::Tensor& x) const {
    if (!ChangesShape()) return x;
    const at::Tensor every = x.slice(2, 0, torch::nullopt, shape_.stride)
                                 .slice(3, 0, torch::nullopt, shape_.stride);
    return torch::constant_pad_nd(every,
                                  {0, 0, 0, 0, 0, shape_.out() - shape_.in}, 0);
  }

  const BlockShape shape_;
  std::vector<nn::Conv2d> convs_;
  std::vector<nn::BatchNorm2d> norms_;
  nn::Conv2d projection_conv_{nullptr};
  nn::BatchNorm2d projection_norm_{nullptr};
};

// `first` describes the first block; the others follow with stride 1 and
// `dilation`.
nn::Sequential Stage(BlockShape first, int64_t blocks, int64_t dilation) {
  nn::Sequential stage;
  stage->push_back(std::make_shared<BlockImpl>(first));
  BlockShape next = first;
  next.in = first.out();
  next.stride = 1;
  next.dilation = dilation;
  for (int64_t i = 1; i < blocks; ++i) {
    stage->push_back(std::make_shared<BlockImpl>(next));
  }
  return stage;
}

nn::Conv2d Stem(int64_t channels) {
  return Conv({.in = channels, .out = 64, .kernel = 7, .stride = 2});
}

class CifarResNet final : public Model {
 public:
  CifarResNet(int64_t depth, int64_t channels, int64_t classes)
      : conv1_(register_module("conv1", Conv({.in = channels, .out = 16}))),
        bn1_(register_module("bn1", nn::BatchNorm2d(16))) {
    COHORT_CHECK(depth >= 8 && depth % 6 == 2,
                 absl::StrCat("depth ", depth, ", want 6k + 2"));
    int64_t in = 16;
    for (int64_t stage = 0; stage < 3; ++stage) {
      const BlockShape first{.in = in,
                             .planes = int64_t{16} << stage,
                             .stride = stage == 0 ? 1 : 2,
                             .projection = false};
      stages_.push_back(
          register_module(absl::StrCat("layer", stage + 1),
                          Stage(first, (depth - 2) / 6, /*dilation=*/1)));
      in = first.planes;
    }
    fc_ = register_module("fc", nn::Linear(in, classes));
  }

  ModelOutput forward(const at::Tensor& images) override {
    at::Tensor x = BatchNormRelu(bn1_, conv1_(images));
    for (nn::Sequential& stage : stages_) x = stage->forward(x);
    return {.logits = fc_(x.mean({2, 3}))};
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  std::vector<nn::Sequential> stages_;
  nn::Linear fc_{nullptr};
};

class ResNet final : public Model {
 public:
  ResNet(ResNetSize size, int64_t channels, int64_t classes)
      : trunk_(size, channels, /*dilated=*/false) {
    // The trunk itself has no name in torchvision.
    for (const auto& child : trunk_->named_children()) {
      register_module(child.key(), child.value());
    }
    fc_ = register_module("fc", nn::Linear(trunk_->layer4_channels(), classes));
  }

  ModelOutput forward(const at::Tensor& images) override {
    return {.logits = fc_(trunk_(images).layer4.mean({2, 3}))};
  }

 private:
  ResNetTrunk trunk_;
  nn::Linear fc_{nullptr};
};

}  // namespace

ResNetTrunkImpl::ResNetTrunkImpl(ResNetSize size, int64_t channels,
                                 bool dilated)
    : conv1_(register_module("conv1", Stem(channels))),
      bn1_(register_module("bn1", nn::BatchNorm2d(64))) {
  const bool bottleneck = size == ResNetSize::k50;
  const std::array<int64_t, 4> blocks =
      bottleneck ? std::array<int64_t, 4>{3, 4, 6, 3}
                 : std::array<int64_t, 4>{2, 2, 2, 2};
  const std::array<nn::Sequential*, 4> stages = {&layer1_, &layer2_, &layer3_,
                                                 &layer4_};
  int64_t in = 64;
  int64_t dilation = 1;
  for (size_t i = 0; i < stages.size(); ++i) {
    BlockShape first{.in = in,
                     .planes = int64_t{64} << i,
                     .stride = i == 0 ? 1 : 2,
                     .dilation = dilation,
                     .bottleneck = bottleneck};
    if (dilated && i >= 2) {
      dilation *= first.stride;
      first.stride = 1;
    }
    *stages[i] = register_module(absl::StrCat("layer", i + 1),
                                 Stage(first, blocks[i], dilation));
    in = first.out();
  }
  layer4_channels_ = in;
}

ResNetTrunkImpl::Features ResNetTrunkImpl::forward(const at::Tensor& images) {
  at::Tensor x = BatchNormRelu(bn1_, conv1_(images));
  x = torch::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  Features features;
  features.layer3 = layer3_->forward(layer2_->forward(layer1_->forward(x)));
  features.layer4 = layer4_->forward(features.layer3);
  return features;
}

std::shared_ptr<Model> MakeCifarResNet(int64_t depth, int64_t channels,
                                       int64_t classes) {
  return std::make_shared<CifarResNet>(depth, channels, classes);
}

std::shared_ptr<Model> MakeResNet(ResNetSize size, int64_t channels,
                                  int64_t classes) {
  return std::make_shared<ResNet>(size, channels, classes);
}

}  // namespace cohort
