#include "worker/models/layers.h"

#include <utility>
#include <vector>

#include "worker/batch_norm/functional.h"

namespace cohort {

namespace nn = torch::nn;

nn::Conv2d Conv(const ConvShape& shape) {
  return nn::Conv2d(nn::Conv2dOptions(shape.in, shape.out, shape.kernel)
                        .stride(shape.stride)
                        .padding(shape.dilation * (shape.kernel - 1) / 2)
                        .dilation(shape.dilation)
                        .bias(false));
}

ConvBnReluImpl::ConvBnReluImpl(const ConvShape& shape)
    : conv_(register_module("conv", Conv(shape))),
      bn_(register_module("bn", nn::BatchNorm2d(shape.out))) {}

at::Tensor ConvBnReluImpl::forward(const at::Tensor& x) {
  return BatchNormRelu(bn_, conv_(x));
}

std::vector<at::Tensor> ForwardEach(
    absl::Span<const std::pair<ConvBnRelu, at::Tensor>> siblings) {
  std::vector<std::pair<nn::BatchNorm2d, at::Tensor>> norms;
  for (auto [module, x] : siblings) {
    norms.emplace_back(module->bn(), module->conv()->forward(x));
  }
  return BatchNormReluEach<nn::BatchNorm2d>(norms);
}

at::Tensor ResizeBilinear(const at::Tensor& x, int64_t height, int64_t width) {
  return torch::upsample_bilinear2d(x, {height, width},
                                    /*align_corners=*/false);
}

}  // namespace cohort
