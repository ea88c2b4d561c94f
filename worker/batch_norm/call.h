#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "common/model_layout.h"
#include "common/moments.h"
#include "kernels/batch_norm_args.h"
#include "kernels/data_type.h"
#include "worker/batch_norm/batch_norm_function.h"
#include "worker/batch_norm/scope.h"

// State that the two passes of a batch-norm call share, on any device.
namespace cohort {

// Everything that the backward pass of a call needs besides tensors.
struct SavedCall {
  BatchNormCall call;
  // The moving statistics were used: constants to the backward pass.
  bool frozen = false;
  kernels::BatchShape shape;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  std::shared_ptr<const Normalizer> by;
  bool has_weight = false;
  // The call's own addend, or the output of the next call.
  bool has_addend = false;
  std::optional<at::ScalarType> bias_type;
};

// Tensors of a backward pass, contiguous in the call's format.
struct BackwardTensors {
  at::Tensor x;
  at::Tensor dy;
  at::Tensor weight;
  // For the ReLU's mask, which is computed from the output if there was an
  // addend and from bias and weight otherwise.
  at::Tensor bias;
  at::Tensor y;
  // Out: dy after the mask. Defined if there was an addend.
  at::Tensor dz;
};

// Scale and shift as the kernels take them.
struct Parameters {
  at::Tensor gamma;
  at::Tensor beta;
  kernels::DataType type = kernels::DataType::kFloat32;
};

// The gradients that a backward pass must compute.
struct NeededGradients {
  bool dx = false;
  bool dgamma = false;
  bool dbeta = false;
};

// Gradients that were not requested are undefined.
struct BatchNormGradients {
  at::Tensor dx;
  at::Tensor dgamma;
  at::Tensor dbeta;
};

// One call in the forward pass; its input is contiguous in the call's format.
struct ForwardCall {
  const SavedCall* saved = nullptr;
  at::Tensor x;
};

// One call in the backward pass.
struct BackwardCall {
  const SavedCall* saved = nullptr;
  BackwardTensors tensors;
  NeededGradients needed;

  // Whether the sums of all members are needed. This is a property of the
  // model, so all members agree on whether the rendezvous takes place.
  bool NeedsAll() const { return needed.dx && !saved->frozen; }
  bool NeedsSums() const {
    return NeedsAll() || needed.dgamma || needed.dbeta || saved->has_addend;
  }
};

const BatchNormSpec& SpecOf(const BatchNormCall& call);

// Absent if no kernel supports the type.
std::optional<kernels::DataType> FindType(const at::Tensor& tensor);
kernels::DataType TypeOf(const at::Tensor& tensor);

at::Tensor ValueOr(const OptionalTensor& tensor);
// All elements, in row-major order, wherever the tensor lives.
std::vector<double> ToDoubles(const at::Tensor& tensor);
void* DataOrNull(const at::Tensor& tensor);
Parameters ParametersOf(const at::Tensor& weight, const at::Tensor& bias);

// The moments of all members, in the same order. Without a rendezvous, the
// local moments. Throws: StepInterrupted.
std::vector<Moments> Exchange(const BatchNormScope::Step& step,
                              std::vector<Contribution> local);

// The contribution of a call, in either pass. `extents` are those of the input
// behind batch and channels, in the forward pass.
Contribution At(const SavedCall& saved, ReducePhase phase, Moments moments,
                std::vector<int64_t> extents = {});
// The contribution of a forward call, whose input is `x`.
Contribution At(const SavedCall& saved, const at::Tensor& x, Moments moments);
// The number of the call among those of its layer, through all parts of the
// step.
int32_t NumberInStep(const BatchNormCall& call);

// Arguments of the kernels for a call, on either device. Sums are pointers in
// the memory of the tensors.
kernels::NormalizeArgs NormalizeArgsOf(const SavedCall& saved,
                                       const Parameters& parameters,
                                       const at::Tensor& x,
                                       const at::Tensor& addend,
                                       const at::Tensor& y);
// `parameters` are those of the call's tensors.
kernels::BackwardReduceArgs ReduceArgsOf(const BackwardCall& call,
                                         const Parameters& parameters);
// Null sums: the statistics are constants.
kernels::BackwardElementwiseArgs ElementwiseArgsOf(const BackwardCall& call,
                                                   const Parameters& parameters,
                                                   const double* sum_dy,
                                                   const double* sum_dy_xmu,
                                                   const at::Tensor& dx);

}  // namespace cohort
