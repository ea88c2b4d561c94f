#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace cohort {

struct ConvShape {
  int64_t in = 0;
  int64_t out = 0;
  int64_t kernel = 3;
  int64_t stride = 1;
  int64_t dilation = 1;
};

// A convolution as it stands before batch norm: no bias, and padded so that
// with stride 1 the map keeps its size. `kernel` is odd.
torch::nn::Conv2d Conv(const ConvShape& shape);

// Convolution `conv`, batch norm `bn`, ReLU.
class ConvBnReluImpl final : public torch::nn::Module {
 public:
  explicit ConvBnReluImpl(const ConvShape& shape);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d bn_;
};
TORCH_MODULE(ConvBnRelu);

// Bilinear, with pixels as areas (align_corners off).
// Shapes: [n, c, h, w] to [n, c, height, width].
at::Tensor ResizeBilinear(const at::Tensor& x, int64_t height, int64_t width);

}  // namespace cohort
