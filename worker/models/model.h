#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace cohort {

// A network that maps images to class scores.
class Model : public torch::nn::Module {
 public:
  // Shapes: images [n, channels, h, w] to logits [n, classes].
  virtual at::Tensor forward(const at::Tensor& images) = 0;
};

struct ModelOptions {
  // "cnn" or "smooth".
  std::string name;
  int64_t channels = 1;
  int64_t classes = 10;
  // Decides the initial values; the process-wide generator is not used.
  uint64_t seed = 1;
};

// cnn: three times conv3x3 (c -> 32 -> 64 -> 128), batch norm, ReLU, with
//   2x2 max pooling after the first two; global average pooling; linear.
// smooth: the same shape with 8, 16 and 16 channels, tanh instead of ReLU and
//   average instead of max pooling: a function without kinks, in which
//   rounding does not grow.
// Convolutions before batch norm have no bias.
// Initial values: Kaiming-uniform with gain sqrt(2) for convolutions,
//   U(-1/sqrt(in), 1/sqrt(in)) for the linear layer, as PyTorch's defaults
//   for the latter; batch norm 1 and 0.
// Source: He et al., "Delving Deep into Rectifiers", 2015, section 2.2.
// Errors: InvalidArgument unknown name (lists the known ones), channels or
//   classes below 1.
absl::StatusOr<std::shared_ptr<Model>> MakeModel(const ModelOptions& options);

}  // namespace cohort
