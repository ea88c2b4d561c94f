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
// bytes. Parameters must be float32 on one device; they keep their names.
//
// Thread safety: none.
class ModelWeights {
 public:
  // Biases and the scale and shift of batch norm are exempt from decay;
  // parameters that need no gradient are not trainable; one that the model
  // lists under several names keeps the first.
  // Errors: InvalidArgument naming a parameter of another type or on another
  //   device.
  static absl::StatusOr<ModelWeights> Make(torch::nn::Module& model,
                                           const BatchNormBinding& binding,
                                           at::Device device = at::kCPU);

  const ModelLayout& layout() const { return layout_; }
  // The model's own tensors, in layout order.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // Elements of each parameter, where they lie; of one on another device than
  // the CPU a copy, made by Make. Valid as long as the weights and the model.
  std::vector<absl::Span<const float>> Values() const;

  // How the server cuts the model.
  void SetPartitions(std::vector<Partition> partitions);
  const std::vector<Partition>& partitions() const { return partitions_; }

  struct Gradient {
    ByteRope bytes;
    std::vector<int32_t> absent_slices;
  };
  // On the CPU: the gradient of one partition, referenced where autograd left
  // it and kept alive; zeros and a mark for parameters without one.
  Gradient GradientOf(int32_t partition) const;
  // Lets go of all gradients; the next backward pass makes new ones.
  void ClearGradients();

  // The ropes are as long as the partitions, or empty.
  // Errors: InvalidArgument.
  absl::Status CheckSizes(absl::Span<const ByteRope> ropes) const;
  // On the CPU: overwrites the parameters of each partition whose rope is not
  // empty.
  // Errors: InvalidArgument if a rope has the wrong length.
  absl::Status Load(absl::Span<const ByteRope> ropes);

 private:
  ModelLayout layout_;
  std::vector<at::Tensor> parameters_;
  // The same ones on the CPU, or copies.
  std::vector<at::Tensor> on_host_;
  std::vector<Partition> partitions_;
};

}  // namespace cohort
