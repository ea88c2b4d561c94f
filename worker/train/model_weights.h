#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/model_layout.h"
#include "worker/batch_norm/binding.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace cohort {

// A model's parameters as the server sees them: a layout, and partitions of
// bytes. Parameters must be float32 and on one device. They keep their names.
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
  // The model's own tensors, in layout order.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // Elements of each parameter, without a copy on the CPU; on another device a
  // copy, made by Make. Valid as long as the weights and the model.
  std::vector<absl::Span<const float>> Values() const;

  // Sets how the server splits the model.
  void SetPartitions(std::vector<Partition> partitions);
  const std::vector<Partition>& partitions() const { return partitions_; }

  struct Gradient {
    ByteRope bytes;
    std::vector<int32_t> absent_slices;
  };
  // On the CPU: the gradient of one partition. It refers to autograd's memory
  // and keeps it alive. A parameter without a gradient has zeros and a mark.
  Gradient GradientOf(int32_t partition) const;
  // Releases all gradients; the next backward pass creates new ones.
  void ClearGradients();

  // Checks that every rope has its partition's length, or is empty.
  // Errors: InvalidArgument.
  absl::Status CheckSizes(absl::Span<const ByteRope> ropes) const;
  // On the CPU: overwrites the parameters of each partition whose rope is not
  // empty.
  // Errors: InvalidArgument if a rope has the wrong length.
  absl::Status Load(absl::Span<const ByteRope> ropes);

 private:
  ModelLayout layout_;
  std::vector<at::Tensor> parameters_;
  // The parameters on the CPU: the same tensors, or copies.
  std::vector<at::Tensor> on_host_;
  std::vector<Partition> partitions_;
};

}  // namespace cohort
