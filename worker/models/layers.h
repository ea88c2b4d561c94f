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

// norm(x), also of one element a channel, which the module's own forward
// refuses in training: an image a worker and a map of 1x1 are no less a part
// of the cohort's batch. Within a BatchNormScope that is what it is
// normalised as; alone it comes out as the layer's shift.
// `norm` is a torch::nn::BatchNorm1d, 2d or 3d.
template <typename Norm>
at::Tensor BatchNorm(Norm& norm, const at::Tensor& x) {
  const bool tracks = norm->options.track_running_stats();
  if (norm->is_training() && tracks) norm->num_batches_tracked += 1;
  return torch::batch_norm(x, norm->weight, norm->bias, norm->running_mean,
                           norm->running_var, norm->is_training() || !tracks,
                           *norm->options.momentum(), norm->options.eps(),
                           at::globalContext().userEnabledCuDNN());
}

// relu(norm(x)).
template <typename Norm>
at::Tensor BatchNormRelu(Norm& norm, const at::Tensor& x) {
  return BatchNorm(norm, x).relu_();
}

// relu(norm(x) + z), z of the shape of x.
template <typename Norm>
at::Tensor BatchNormAddRelu(Norm& norm, const at::Tensor& x,
                            const at::Tensor& z) {
  return BatchNorm(norm, x).add_(z).relu_();
}

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
