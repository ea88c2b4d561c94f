#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model_layout.h"
#include "worker/batch_norm/binding.h"
#include "worker/device/compute_device.h"
#include "worker/session/model_memory.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace cohort {

// A model's parameters as the server sees them. They must be float32 and on one
// device. They keep their names.
//
// Thread safety: none.
class ModelWeights {
 public:
  // Biases and the scale and shift of batch norm are exempt from decay;
  // parameters that need no gradient are not trainable; a parameter that the
  // model lists under several names keeps the first.
  // Errors: InvalidArgument naming a parameter of another type or on another
  //   device.
  static absl::StatusOr<ModelWeights> Make(torch::nn::Module& model,
                                           const BatchNormBinding& binding,
                                           at::Device device = at::kCPU);

  const ModelLayout& layout() const { return layout_; }
  // For the factors of rates and decay.
  ModelLayout& mutable_layout() { return layout_; }
  // The model's own tensors, in layout order.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // Elements of each parameter, without a copy on the CPU; on another device a
  // copy, made by Make. Valid as long as the weights and the model.
  std::vector<absl::Span<const float>> Values() const;

  // Where they are, and their gradients: host memory, or an accelerator's.
  // Errors: those of the accelerator.
  absl::StatusOr<std::unique_ptr<ModelMemory>> MakeMemory(
      const Compute& compute) const;
  // Releases all gradients; the next backward pass creates new ones.
  void ClearGradients();

 private:
  ModelLayout layout_;
  std::vector<at::Tensor> parameters_;
  // The parameters on the CPU: the same tensors, or copies.
  std::vector<at::Tensor> on_host_;
};

}  // namespace cohort
