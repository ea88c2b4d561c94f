#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort {

// Class scores of a head that is used in training only.
struct AuxiliaryOutput {
  // Has the shape of the main head's logits.
  at::Tensor logits;
  // Factor of its loss in the sum with the main loss.
  double weight = 0;
};

// Shapes: logits [n, classes], or [n, classes, h, w] at the input's size.
struct ModelOutput {
  at::Tensor logits;
  // Empty in evaluation mode.
  std::vector<AuxiliaryOutput> auxiliary;
};

// A network that maps images to class scores.
class Model : public torch::nn::Module {
 public:
  // Shapes: images [n, channels, h, w], any n including 0.
  // Throws: c10::Error for images that do not fit.
  virtual ModelOutput forward(const at::Tensor& images) = 0;
};

struct ModelOptions {
  // One of the names below, or a TorchScript file.
  std::string name;
  int64_t channels = 1;
  int64_t classes = 10;
  // unet: channels of its first stage; 0: 64. Other models must leave it 0.
  int64_t width = 0;
  // Decides the initial values; the process-wide generator is not used.
  uint64_t seed = 1;
  // Called with warnings about an accepted TorchScript file; may be empty.
  std::function<void(const std::string&)> warn;
};

// Images to [n, classes]:
//   cnn: three times conv3x3 (c -> 32 -> 64 -> 128), batch norm, ReLU, with
//     2x2 max pooling after the first two; global average pooling; linear.
//   smooth: the same shape with 8, 16 and 16 channels, tanh instead of ReLU
//     and average instead of max pooling: a function without kinks, in which
//     rounding does not grow.
//   resnet20, resnet56, resnet18, resnet50: see resnet.h.
// Images to [n, classes, h, w]:
//   unet: see unet.h.
//   pspnet, pspnet18: see pspnet.h.
// A name that ends in .pt, .pth or .ts, or holds a slash, is a TorchScript
// file; see script_model.h.
//
// Convolutions before batch norm have no bias. For initial values see
// initial_values.h; a TorchScript file has its own.
// Errors: InvalidArgument unknown name (lists the known ones), channels,
//   classes or width out of range, a width for another model than unet; those
//   of LoadScriptModel.
absl::StatusOr<std::shared_ptr<Model>> MakeModel(const ModelOptions& options);

}  // namespace cohort
