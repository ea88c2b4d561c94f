#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>

#include "common/assignment.h"
#include "common/model_layout.h"
#include "kernels/batch_norm_args.h"
#include "kernels/data_type.h"
#include "worker/batch_norm/batch_norm_function.h"
#include "worker/batch_norm/scope.h"

// What the two passes of a batch-norm call share, wherever its tensors lie.
namespace cohort {

// Everything of a call that its backward pass needs besides tensors.
struct SavedCall : torch::CustomClassHolder {
  BatchNormCall call;
  // Moving statistics: constants to the backward pass.
  bool frozen = false;
  kernels::BatchShape shape;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  std::shared_ptr<const Normalizer> by;
  bool has_weight = false;
  bool has_addend = false;
  std::optional<at::ScalarType> bias_type;
};

// Tensors of a backward pass, contiguous in the call's format.
struct BackwardTensors {
  at::Tensor x;
  at::Tensor dy;
  at::Tensor weight;
  // For the ReLU's mask, which is read off the output where something was
  // added and off the other two where nothing was.
  at::Tensor bias;
  at::Tensor y;
  // Out: dy after the mask, where something was added.
  at::Tensor dz;
};

// Scale and shift as the kernels take them.
struct Parameters {
  at::Tensor gamma;
  at::Tensor beta;
  kernels::DataType type = kernels::DataType::kFloat32;
};

// Gradients that are wanted of a backward pass.
struct GradientWishes {
  bool dx = false;
  bool dgamma = false;
  bool dbeta = false;
  bool dz = false;
};

// Undefined where not wanted.
struct BatchNormGradients {
  at::Tensor dx;
  at::Tensor dgamma;
  at::Tensor dbeta;
  at::Tensor dz;
};

const BatchNormSpec& SpecOf(const BatchNormCall& call);

// Absent for a type that no kernel has.
std::optional<kernels::DataType> FindType(const at::Tensor& tensor);
kernels::DataType TypeOf(const at::Tensor& tensor);

at::Tensor ValueOr(const OptionalTensor& tensor);
void* DataOrNull(const at::Tensor& tensor);
Parameters ParametersOf(const at::Tensor& weight, const at::Tensor& bias);

// Moments of all members, or the local ones without a rendezvous.
// Throws: StepInterrupted.
Moments Exchange(const BatchNormCall& call, ReducePhase phase, Moments local);

// What a call is normalised by, in the host's memory.
std::shared_ptr<Normalizer> NormalizerOf(Moments moments, double epsilon);

}  // namespace cohort
