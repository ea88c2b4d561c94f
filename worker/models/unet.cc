#include "worker/models/unet.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "worker/models/layers.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

constexpr int64_t kPoolings = 4;

class StageImpl final : public nn::Module {
 public:
  StageImpl(int64_t in, int64_t out)
      : first_(
            register_module("0", ConvBnRelu(ConvShape{.in = in, .out = out}))),
        second_(register_module(
            "1", ConvBnRelu(ConvShape{.in = out, .out = out}))) {}

  at::Tensor forward(const at::Tensor& x) { return second_(first_(x)); }

 private:
  ConvBnRelu first_;
  ConvBnRelu second_;
};
TORCH_MODULE(Stage);

class Unet final : public Model {
 public:
  explicit Unet(const UnetOptions& options) {
    nn::ModuleList encoder;
    nn::ModuleList up;
    nn::ModuleList decoder;
    int64_t in = options.channels;
    for (int64_t level = 0; level <= kPoolings; ++level) {
      const int64_t out = options.width << level;
      encoder_.emplace_back(in, out);
      encoder->push_back(encoder_.back());
      in = out;
    }
    for (int64_t level = kPoolings - 1; level >= 0; --level) {
      const int64_t out = options.width << level;
      up_.emplace_back(nn::ConvTranspose2dOptions(2 * out, out, 2).stride(2));
      up->push_back(up_.back());
      decoder_.emplace_back(2 * out, out);
      decoder->push_back(decoder_.back());
    }
    register_module("encoder", encoder);
    register_module("up", up);
    register_module("decoder", decoder);
    classifier_ = register_module(
        "classifier",
        nn::Conv2d(nn::Conv2dOptions(options.width, options.classes, 1)));
  }

  ModelOutput forward(const at::Tensor& images) override {
    std::vector<at::Tensor> skips;
    at::Tensor x = images;
    for (Stage& stage : encoder_) {
      if (!skips.empty()) {
        x = torch::max_pool2d(x, /*kernel_size=*/2, /*stride=*/2, /*padding=*/0,
                              /*dilation=*/1, /*ceil_mode=*/true);
      }
      x = stage(x);
      skips.push_back(x);
    }
    skips.pop_back();
    for (size_t i = 0; i < decoder_.size(); ++i) {
      const at::Tensor skip = std::exchange(skips.back(), at::Tensor());
      skips.pop_back();
      // Transposed convolutions of LibTorch 1.13 lose the memory layout.
      x = up_[i](x).contiguous(skip.suggest_memory_format());
      x = x.narrow(2, 0, skip.size(2)).narrow(3, 0, skip.size(3));
      x = decoder_[i](torch::cat({skip, x}, 1));
    }
    return {.logits = classifier_(x)};
  }

 private:
  std::vector<Stage> encoder_;
  std::vector<nn::ConvTranspose2d> up_;
  std::vector<Stage> decoder_;
  nn::Conv2d classifier_{nullptr};
};

}  // namespace

std::shared_ptr<Model> MakeUnet(const UnetOptions& options) {
  return std::make_shared<Unet>(options);
}

}  // namespace cohort
