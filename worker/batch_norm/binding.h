#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model_layout.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace cohort {

// How a model's batch-norm layers are taken.
struct BindingOptions {
  // Applies to all layers. A layer's momentum is the weight of the newest batch
  // in both conventions; Keras calls one minus that value momentum.
  StatisticsConvention convention = StatisticsConvention::kPyTorch;
  // Layers that use their moving statistics even in training mode, so that
  // these never change. Names as in BatchNormBinding::layers(), or prefixes of
  // names followed by `*`.
  std::vector<std::string> frozen_statistics;
  // Where the model's tensors are.
  at::Device device = at::kCPU;
};

// The batch-norm layers of one model, as Cohort numbers them.
//
// Built from any tree of torch::nn modules, which are not replaced. A layer is
// known by the identity of its tensors, so a call is recognised wherever in the
// model it is made from, and a layer called twice is one layer with two calls.
//
// The binding keeps the tensors, not the modules. Build it once the model is
// on its device and has its type; replacing a layer's weight or running_mean
// by another tensor afterwards unbinds the layer.
//
// Thread safety: const methods are safe; LoadStatistics writes the model.
class BatchNormBinding {
 public:
  // Lists the BatchNorm1d, 2d and 3d modules of `model` in module order; a
  // module that appears twice is listed once. A layer that has neither scale
  // nor moving statistics is given a constant weight of ones as its identity,
  // which is not a parameter and does not change its result.
  //
  // The first binding of a process installs the batch-norm kernel that
  // BatchNormScope relies on.
  // Errors: InvalidArgument if two layers cannot be distinguished, a name to
  //   freeze matches no layer, or a layer to freeze keeps no statistics.
  static absl::StatusOr<BatchNormBinding> Make(
      torch::nn::Module& model, const BindingOptions& options = {});

  absl::Span<const BatchNormSpec> layers() const { return specs_; }

  // Index of the layer that these tensors belong to. Either may be
  // undefined.
  std::optional<int32_t> LayerOf(const at::Tensor& weight,
                                 const at::Tensor& running_mean) const;

  // Whether a layer uses its moving statistics in every mode.
  bool IsFrozen(int32_t layer) const {
    return layers_[static_cast<size_t>(layer)].frozen;
  }
  bool HasFrozen() const;

  // Whether `parameter` is the scale or shift of a layer.
  bool IsScaleOrShift(const at::Tensor& parameter) const;

  // Moving statistics as the model holds them, one entry a layer; mean 0 and
  // variance 1 for layers that keep none.
  std::vector<LayerStatistics> Statistics() const;

  // Overwrites the model's moving statistics; layers that keep none are
  // skipped.
  // Errors: InvalidArgument if the number of layers or channels differs.
  absl::Status LoadStatistics(absl::Span<const LayerStatistics> statistics);

 private:
  struct Layer {
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor num_batches_tracked;
    bool frozen = false;
  };

  template <typename BatchNorm>
  absl::Status AddIfBatchNorm(const std::string& name,
                              torch::nn::Module& module, at::Device device);
  absl::Status Add(BatchNormSpec spec, Layer layer);
  absl::Status Freeze(const std::string& pattern);

  std::vector<BatchNormSpec> specs_;
  std::vector<Layer> layers_;
  absl::flat_hash_map<const c10::TensorImpl*, int32_t> layer_of_;
};

}  // namespace cohort
