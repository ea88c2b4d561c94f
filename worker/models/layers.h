#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace cohort {

struct ConvShape {
  int64_t in = 0;
  int64_t out = 0;
  int64_t kernel = 3;
  int64_t stride = 1;
  int64_t dilation = 1;
};

// A convolution that precedes batch norm: no bias, and padded so that the map
// keeps its size with stride 1. `kernel` is odd.
torch::nn::Conv2d Conv(const ConvShape& shape);

// Convolution `conv`, batch norm `bn`, ReLU.
class ConvBnReluImpl final : public torch::nn::Module {
 public:
  explicit ConvBnReluImpl(const ConvShape& shape);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Conv2d& conv() { return conv_; }
  const torch::nn::BatchNorm2d& bn() const { return bn_; }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d bn_;
};
TORCH_MODULE(ConvBnRelu);

// Applies each layer to its input. Their batch norms share a rendezvous, so no
// input may depend on another's output.
std::vector<at::Tensor> ForwardEach(
    absl::Span<const std::pair<ConvBnRelu, at::Tensor>> siblings);

// Bilinear, with pixels as areas (align_corners off).
// Shapes: [n, c, h, w] to [n, c, height, width].
at::Tensor ResizeBilinear(const at::Tensor& x, int64_t height, int64_t width);

}  // namespace cohort
