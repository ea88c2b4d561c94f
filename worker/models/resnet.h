#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace cohort {

// resnet20, resnet56: conv3x3 to 16 channels, then three stages of (depth - 2)
// / 6 blocks of two 3x3 convolutions with 16, 32 and 64 channels, the first of
// a later stage with stride 2; global average pooling; linear. Shortcuts are
// option A: identity or, if the shape changes, every second pixel with zeros
// for the new channels; so they have no parameters. `depth` is 6k + 2. Initial
// values are not set.
// Source: He et al., "Deep Residual Learning for Image Recognition", 2015,
//   section 4.2.
std::shared_ptr<Model> MakeCifarResNet(int64_t depth, int64_t channels,
                                       int64_t classes);

enum class ResNetSize { k18, k50 };

// Stem and four stages of an ImageNet ResNet, in torchvision's layout and
// names: conv1 (7x7, stride 2), bn1, 3x3 max pooling with stride 2, layer1 to
// layer4, with stride 2 in the 3x3 convolution of a bottleneck; projection
// shortcuts (option B, downsample.0 and .1) where the shape changes.
// Source: He et al., 2015, table 1.
class ResNetTrunkImpl final : public torch::nn::Module {
 public:
  // `dilated`: layer3 and layer4 keep layer2's size and dilate their 3x3
  // convolutions by 2 and 4 instead (the first block of each by 1 and 2).
  // Source: Yu and Koltun, "Multi-Scale Context Aggregation by Dilated
  //   Convolutions", 2016.
  ResNetTrunkImpl(ResNetSize size, int64_t channels, bool dilated);

  struct Features {
    at::Tensor layer3;
    at::Tensor layer4;
  };
  Features forward(const at::Tensor& images);

  int64_t layer3_channels() const { return layer4_channels_ / 2; }
  int64_t layer4_channels() const { return layer4_channels_; }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_;
  torch::nn::Sequential layer2_;
  torch::nn::Sequential layer3_;
  torch::nn::Sequential layer4_;
  int64_t layer4_channels_ = 0;
};
TORCH_MODULE(ResNetTrunk);

// resnet18, resnet50: the trunk, global average pooling, linear `fc`; the state
// dict has torchvision's names. Initial values are not set.
std::shared_ptr<Model> MakeResNet(ResNetSize size, int64_t channels,
                                  int64_t classes);

}  // namespace cohort
