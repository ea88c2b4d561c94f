#include <torch/torch.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "worker/batch_norm/engine.h"

namespace cohort {
namespace {

Moments ForwardMoments(const SavedCall& saved, const at::Tensor& x) {
  const BatchNormCall& call = saved.call;
  const auto channels = static_cast<size_t>(saved.shape.channels);
  Moments local{.count = saved.shape.count(),
                .first = std::vector<double>(channels),
                .second = std::vector<double>(channels)};
  StepContext* context = call.step->context;
  if (local.count > 0) {
    context->backend->Moments({.shape = saved.shape,
                               .type = TypeOf(x),
                               .x = x.data_ptr(),
                               .mean = local.first.data(),
                               .m2 = local.second.data()});
  }
  if (context->rendezvous == nullptr) {
    context->moments.push_back(
        {.layer = call.layer, .call = call.call, .moments = local});
  }
  return Exchange(call, ReducePhase::kForward, std::move(local));
}

std::vector<double> ToDoubles(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
  const double* data = values.data_ptr<double>();
  return std::vector<double>(data, data + values.numel());
}

// The sums of the local batch; fills tensors.dz.
Moments BackwardSums(const SavedCall& saved, BackwardTensors& tensors) {
  const auto channels = static_cast<size_t>(saved.shape.channels);
  Moments sums{.count = saved.shape.count(),
               .first = std::vector<double>(channels),
               .second = std::vector<double>(channels)};
  if (saved.has_addend) tensors.dz = at::empty_like(tensors.x);
  if (sums.count == 0) return sums;
  const Parameters parameters = ParametersOf(tensors.weight, tensors.bias);
  saved.call.step->context->backend->BackwardReduce(
      {.shape = saved.shape,
       .type = TypeOf(tensors.x),
       .x = tensors.x.data_ptr(),
       .dy = tensors.dy.data_ptr(),
       .mean = saved.by->mean.data(),
       .sum_dy = sums.first.data(),
       .sum_dy_xmu = sums.second.data(),
       .relu = saved.call.relu,
       .y = DataOrNull(tensors.y),
       .invstd = saved.by->invstd.data(),
       .parameter_type = parameters.type,
       .gamma = DataOrNull(parameters.gamma),
       .beta = DataOrNull(parameters.beta),
       .dz = DataOrNull(tensors.dz)});
  return sums;
}

at::Tensor InputGradient(const SavedCall& saved, const BackwardTensors& tensors,
                         const Moments& local) {
  // Needed or not is a property of the model, so all members agree on whether
  // this rendezvous takes place.
  const Moments all = saved.frozen
                          ? Moments()
                          : Exchange(saved.call, ReducePhase::kBackward, local);
  at::Tensor dx = at::empty_like(tensors.x);
  if (saved.shape.count() == 0) return dx;
  const Parameters parameters = ParametersOf(tensors.weight, tensors.bias);
  const bool masked = tensors.dz.defined();
  saved.call.step->context->backend->BackwardElementwise(
      {.shape = saved.shape,
       .type = TypeOf(tensors.x),
       .x = tensors.x.data_ptr(),
       .dy = (masked ? tensors.dz : tensors.dy).data_ptr(),
       .mean = saved.by->mean.data(),
       .invstd = saved.by->invstd.data(),
       .parameter_type = parameters.type,
       .gamma = DataOrNull(parameters.gamma),
       .sum_dy = saved.frozen ? nullptr : all.first.data(),
       .sum_dy_xmu = saved.frozen ? nullptr : all.second.data(),
       .total_count = saved.by->count,
       .relu = saved.call.relu && !masked,
       .beta = DataOrNull(parameters.beta),
       .dx = dx.data_ptr()});
  return dx;
}

at::Tensor FromDoubles(const std::vector<double>& values, at::ScalarType type) {
  return torch::tensor(values, torch::kDouble).to(type);
}

class HostBatchNorm final : public BatchNormEngine {
 public:
  std::shared_ptr<const Normalizer> ByBatch(
      const SavedCall& saved, const at::Tensor& x) const override {
    return NormalizerOf(ForwardMoments(saved, x), saved.call.epsilon);
  }

  std::shared_ptr<const Normalizer> ByStatistics(
      const BatchNormCall& call, const at::Tensor& mean,
      const at::Tensor& variance) const override {
    auto by = std::make_shared<Normalizer>();
    by->mean = ToDoubles(mean);
    by->invstd = ToDoubles(variance);
    for (double& value : by->invstd)
      value = 1.0 / std::sqrt(value + call.epsilon);
    return by;
  }

  void Normalize(const SavedCall& saved, const Parameters& parameters,
                 const at::Tensor& x, const at::Tensor& addend,
                 at::Tensor& y) const override {
    if (saved.shape.count() == 0) return;
    saved.call.step->context->backend->Normalize(
        {.shape = saved.shape,
         .type = TypeOf(x),
         .x = x.data_ptr(),
         .mean = saved.by->mean.data(),
         .invstd = saved.by->invstd.data(),
         .parameter_type = parameters.type,
         .gamma = DataOrNull(parameters.gamma),
         .beta = DataOrNull(parameters.beta),
         .add = DataOrNull(addend),
         .relu = saved.call.relu,
         .y = y.data_ptr()});
  }

  BatchNormGradients Backward(const SavedCall& saved, BackwardTensors& tensors,
                              const GradientWishes& wishes) const override {
    Moments local;
    if ((wishes.dx && !saved.frozen) || wishes.dgamma || wishes.dbeta ||
        saved.has_addend) {
      local = BackwardSums(saved, tensors);
    }
    BatchNormGradients out;
    if (wishes.dx) out.dx = InputGradient(saved, tensors, local);
    if (wishes.dgamma) {
      std::vector<double> scaled = local.second;
      for (size_t c = 0; c < scaled.size(); ++c)
        scaled[c] *= saved.by->invstd[c];
      out.dgamma = FromDoubles(scaled, tensors.weight.scalar_type());
    }
    if (wishes.dbeta) out.dbeta = FromDoubles(local.first, *saved.bias_type);
    if (wishes.dz) out.dz = tensors.dz;
    return out;
  }
};

}  // namespace

const BatchNormEngine& HostEngine() {
  static const HostBatchNorm kEngine;
  return kEngine;
}

}  // namespace cohort
