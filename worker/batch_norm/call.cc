#include "worker/batch_norm/call.h"

#include <torch/torch.h>

#include <utility>

#include "absl/status/statusor.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {
namespace {

// Mean and inverse deviation of the call, where its tensors are.
const double* MeanOf(const SavedCall& saved) {
  const at::Tensor& values = saved.by->values;
  return values.defined() ? values.data_ptr<double>() : saved.by->mean.data();
}

const double* InvstdOf(const SavedCall& saved) {
  const at::Tensor& values = saved.by->values;
  return values.defined() ? values.data_ptr<double>() + values.size(1)
                          : saved.by->invstd.data();
}

}  // namespace

const BatchNormSpec& SpecOf(const BatchNormCall& call) {
  return call.step->binding->layers()[static_cast<size_t>(call.layer)];
}

std::optional<kernels::DataType> FindType(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernels::DataType::kFloat32;
    case at::kDouble:
      return kernels::DataType::kFloat64;
    case at::kHalf:
      return kernels::DataType::kFloat16;
    case at::kBFloat16:
      return kernels::DataType::kBFloat16;
    default:
      return std::nullopt;
  }
}

kernels::DataType TypeOf(const at::Tensor& tensor) { return *FindType(tensor); }

at::Tensor ValueOr(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

Parameters ParametersOf(const at::Tensor& weight, const at::Tensor& bias) {
  Parameters parameters;
  const at::Tensor& any = weight.defined() ? weight : bias;
  if (!any.defined()) return parameters;
  parameters.type = TypeOf(any);
  if (weight.defined()) parameters.gamma = weight.contiguous();
  if (bias.defined()) parameters.beta = bias.to(any.scalar_type()).contiguous();
  return parameters;
}

std::vector<double> ToDoubles(const at::Tensor& tensor) {
  const at::Tensor values =
      tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* data = values.data_ptr<double>();
  return std::vector<double>(data, data + values.numel());
}

void* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

Contribution At(const SavedCall& saved, ReducePhase phase, Moments moments,
                std::vector<int64_t> extents) {
  return {.place = {.part = saved.call.part,
                    .layer = saved.call.layer,
                    .call = saved.call.call,
                    .phase = phase},
          .moments = std::move(moments),
          .extents = std::move(extents)};
}

Contribution At(const SavedCall& saved, const at::Tensor& x, Moments moments) {
  return At(saved, ReducePhase::kForward, std::move(moments),
            x.sizes().slice(2).vec());
}

int32_t NumberInStep(const BatchNormCall& call) {
  const std::vector<int32_t>& calls = call.step->context->calls;
  const size_t layers = call.step->binding->layers().size();
  int32_t number = call.call;
  for (int32_t part = 0; part < call.part; ++part) {
    number += calls[static_cast<size_t>(part) * layers +
                    static_cast<size_t>(call.layer)];
  }
  return number;
}

std::vector<Moments> Exchange(const BatchNormScope::Step& step,
                              std::vector<Contribution> local) {
  Rendezvous* const rendezvous = step.context->rendezvous;
  if (rendezvous == nullptr) {
    std::vector<Moments> own;
    for (Contribution& call : local) own.push_back(std::move(call.moments));
    return own;
  }
  if (local.empty()) return {};
  absl::StatusOr<std::vector<Moments>> all = rendezvous->Reduce(local);
  if (!all.ok()) throw StepInterrupted(all.status());
  return *std::move(all);
}

kernels::NormalizeArgs NormalizeArgsOf(const SavedCall& saved,
                                       const Parameters& parameters,
                                       const at::Tensor& x,
                                       const at::Tensor& addend,
                                       const at::Tensor& y) {
  return {.shape = saved.shape,
          .type = TypeOf(x),
          .x = x.data_ptr(),
          .mean = MeanOf(saved),
          .invstd = InvstdOf(saved),
          .parameter_type = parameters.type,
          .gamma = DataOrNull(parameters.gamma),
          .beta = DataOrNull(parameters.beta),
          .add = DataOrNull(addend),
          .relu = saved.call.relu,
          .y = y.data_ptr()};
}

kernels::BackwardReduceArgs ReduceArgsOf(const BackwardCall& call,
                                         const Parameters& parameters) {
  const SavedCall& saved = *call.saved;
  const BackwardTensors& tensors = call.tensors;
  return {.shape = saved.shape,
          .type = TypeOf(tensors.x),
          .x = tensors.x.data_ptr(),
          .dy = tensors.dy.data_ptr(),
          .mean = MeanOf(saved),
          .relu = saved.call.relu,
          .y = DataOrNull(tensors.y),
          .invstd = InvstdOf(saved),
          .parameter_type = parameters.type,
          .gamma = DataOrNull(parameters.gamma),
          .beta = DataOrNull(parameters.beta),
          .dz = DataOrNull(tensors.dz)};
}

kernels::BackwardElementwiseArgs ElementwiseArgsOf(const BackwardCall& call,
                                                   const Parameters& parameters,
                                                   const double* sum_dy,
                                                   const double* sum_dy_xmu,
                                                   const at::Tensor& dx) {
  const SavedCall& saved = *call.saved;
  const BackwardTensors& tensors = call.tensors;
  const bool masked = tensors.dz.defined();
  return {.shape = saved.shape,
          .type = TypeOf(tensors.x),
          .x = tensors.x.data_ptr(),
          .dy = (masked ? tensors.dz : tensors.dy).data_ptr(),
          .mean = MeanOf(saved),
          .invstd = InvstdOf(saved),
          .parameter_type = parameters.type,
          .gamma = DataOrNull(parameters.gamma),
          .sum_dy = sum_dy,
          .sum_dy_xmu = sum_dy_xmu,
          .total_count = saved.by->count,
          .relu = saved.call.relu && !masked,
          .beta = DataOrNull(parameters.beta),
          .dx = dx.data_ptr()};
}

}  // namespace cohort
