#include "worker/models/pspnet.h"

#include <torch/torch.h>

#include <array>
#include <utility>
#include <vector>

#include "worker/models/layers.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

constexpr std::array<int64_t, 4> kBins = {1, 2, 3, 6};
constexpr double kAuxiliaryWeight = 0.4;
constexpr double kDropout = 0.1;

class PspNet final : public Model {
 public:
  PspNet(ResNetSize size, int64_t channels, int64_t classes)
      : backbone_(register_module(
            "backbone", ResNetTrunk(size, channels, /*dilated=*/true))) {
    const int64_t in = backbone_->layer4_channels();
    const int64_t quarter = in / static_cast<int64_t>(kBins.size());
    nn::ModuleList pyramid;
    for (size_t i = 0; i < kBins.size(); ++i) {
      pyramid_.emplace_back(ConvShape{.in = in, .out = quarter, .kernel = 1});
      pyramid->push_back(pyramid_.back());
    }
    register_module("pyramid", pyramid);
    head_ = register_module(
        "head", ConvBnRelu(ConvShape{.in = 2 * in, .out = quarter}));
    classifier_ = register_module("classifier", Classifier(quarter, classes));
    const int64_t side = backbone_->layer3_channels();
    auxiliary_head_ = register_module(
        "auxiliary_head", ConvBnRelu(ConvShape{.in = side, .out = side / 4}));
    auxiliary_classifier_ =
        register_module("auxiliary_classifier", Classifier(side / 4, classes));
  }

  ModelOutput forward(const at::Tensor& images) override {
    const ResNetTrunkImpl::Features features = backbone_(images);
    const at::Tensor& x = features.layer4;
    std::vector<std::pair<ConvBnRelu, at::Tensor>> levels;
    for (size_t i = 0; i < kBins.size(); ++i) {
      levels.emplace_back(pyramid_[i],
                          torch::adaptive_avg_pool2d(x, {kBins[i], kBins[i]}));
    }
    std::vector<at::Tensor> maps = {x};
    for (const at::Tensor& level : ForwardEach(levels)) {
      maps.push_back(ResizeBilinear(level, x.size(2), x.size(3)));
    }
    std::vector<std::pair<ConvBnRelu, at::Tensor>> heads;
    heads.emplace_back(head_, torch::cat(maps, 1));
    if (is_training()) heads.emplace_back(auxiliary_head_, features.layer3);
    const std::vector<at::Tensor> y = ForwardEach(heads);
    ModelOutput output{.logits = Score(y[0], classifier_, images)};
    if (is_training()) {
      output.auxiliary.push_back(
          {.logits = Score(y[1], auxiliary_classifier_, images),
           .weight = kAuxiliaryWeight});
    }
    return output;
  }

 private:
  static nn::Conv2d Classifier(int64_t in, int64_t classes) {
    return nn::Conv2d(nn::Conv2dOptions(in, classes, 1));
  }

  // Logits at the size of `images`.
  at::Tensor Score(const at::Tensor& x, nn::Conv2d& classifier,
                   const at::Tensor& images) {
    const at::Tensor kept = torch::feature_dropout(x, kDropout, is_training());
    return ResizeBilinear(classifier(kept), images.size(2), images.size(3));
  }

  ResNetTrunk backbone_;
  std::vector<ConvBnRelu> pyramid_;
  ConvBnRelu head_{nullptr};
  nn::Conv2d classifier_{nullptr};
  ConvBnRelu auxiliary_head_{nullptr};
  nn::Conv2d auxiliary_classifier_{nullptr};
};

}  // namespace

std::shared_ptr<Model> MakePspNet(ResNetSize backbone, int64_t channels,
                                  int64_t classes) {
  return std::make_shared<PspNet>(backbone, channels, classes);
}

}  // namespace cohort
