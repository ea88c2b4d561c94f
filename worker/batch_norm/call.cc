#include "worker/batch_norm/call.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {

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

std::shared_ptr<Normalizer> NormalizerOf(Moments moments, double epsilon) {
  auto by = std::make_shared<Normalizer>();
  by->count = moments.count;
  by->invstd.resize(moments.second.size());
  // If no member has samples, there is nothing to normalise; the divisor only
  // keeps 0/0 out of the saved values.
  const double count = static_cast<double>(std::max<int64_t>(moments.count, 1));
  for (size_t c = 0; c < by->invstd.size(); ++c) {
    by->invstd[c] = 1.0 / std::sqrt(moments.second[c] / count + epsilon);
  }
  by->mean = std::move(moments.first);
  return by;
}

}  // namespace cohort
