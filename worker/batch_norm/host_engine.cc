#include <torch/torch.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "worker/batch_norm/call.h"
#include "worker/batch_norm/engine.h"

namespace cohort {
namespace {

Moments LocalMoments(const ForwardCall& call) {
  const SavedCall& saved = *call.saved;
  const auto channels = static_cast<size_t>(saved.shape.channels);
  Moments local{.count = saved.shape.count(),
                .first = std::vector<double>(channels),
                .second = std::vector<double>(channels)};
  if (local.count == 0) return local;
  saved.call.step->context->backend->Moments({.shape = saved.shape,
                                              .type = TypeOf(call.x),
                                              .x = call.x.data_ptr(),
                                              .mean = local.first.data(),
                                              .m2 = local.second.data()});
  return local;
}

// The backward sums over the local batch; fills tensors.dz.
Moments BackwardSums(const BackwardCall& call) {
  const SavedCall& saved = *call.saved;
  const BackwardTensors& tensors = call.tensors;
  const auto channels = static_cast<size_t>(saved.shape.channels);
  Moments sums{.count = saved.shape.count(),
               .first = std::vector<double>(channels),
               .second = std::vector<double>(channels)};
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

// `all` is null if the statistics are constants.
at::Tensor InputGradient(const BackwardCall& call, const Moments* all) {
  const SavedCall& saved = *call.saved;
  const BackwardTensors& tensors = call.tensors;
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
       .sum_dy = all == nullptr ? nullptr : all->first.data(),
       .sum_dy_xmu = all == nullptr ? nullptr : all->second.data(),
       .total_count = saved.by->count,
       .relu = saved.call.relu && !masked,
       .beta = DataOrNull(parameters.beta),
       .dx = dx.data_ptr()});
  return dx;
}

at::Tensor FromDoubles(const std::vector<double>& values, at::ScalarType type) {
  return torch::tensor(values, torch::kDouble).to(type);
}

BatchNormGradients GradientsOf(const BackwardCall& call, const Moments& local,
                               const Moments* all) {
  const SavedCall& saved = *call.saved;
  BatchNormGradients out;
  if (call.needed.dx) out.dx = InputGradient(call, all);
  if (call.needed.dgamma) {
    std::vector<double> scaled = local.second;
    for (size_t c = 0; c < scaled.size(); ++c) scaled[c] *= saved.by->invstd[c];
    out.dgamma = FromDoubles(scaled, call.tensors.weight.scalar_type());
  }
  if (call.needed.dbeta) out.dbeta = FromDoubles(local.first, *saved.bias_type);
  return out;
}

class HostBatchNorm final : public BatchNormEngine {
 public:
  std::vector<std::shared_ptr<const Normalizer>> ByBatch(
      absl::Span<const ForwardCall> calls) const override {
    std::vector<Contribution> local;
    for (const ForwardCall& call : calls) {
      local.push_back(At(*call.saved, call.x, LocalMoments(call)));
    }
    const BatchNormScope::Step& step = *calls.front().saved->call.step;
    if (step.context->rendezvous == nullptr) {
      for (size_t i = 0; i < calls.size(); ++i) {
        const BatchNormCall& call = calls[i].saved->call;
        step.context->moments.push_back({.layer = call.layer,
                                         .call = NumberInStep(call),
                                         .moments = local[i].moments});
      }
    }
    std::vector<Moments> all = Exchange(step, std::move(local));
    std::vector<std::shared_ptr<const Normalizer>> by;
    for (size_t i = 0; i < calls.size(); ++i) {
      by.push_back(
          NormalizerOf(std::move(all[i]), calls[i].saved->call.epsilon));
    }
    return by;
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

  std::vector<BatchNormGradients> Backward(
      absl::Span<const BackwardCall> calls) const override {
    std::vector<Moments> local(calls.size());
    std::vector<Contribution> sent;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].NeedsSums()) local[i] = BackwardSums(calls[i]);
      if (!calls[i].NeedsAll()) continue;
      sent.push_back(At(*calls[i].saved, ReducePhase::kBackward, local[i]));
    }
    const std::vector<Moments> all =
        Exchange(*calls.front().saved->call.step, std::move(sent));
    std::vector<BatchNormGradients> gradients;
    auto next = all.begin();
    for (size_t i = 0; i < calls.size(); ++i) {
      const Moments* const sums = calls[i].NeedsAll() ? &*next++ : nullptr;
      gradients.push_back(GradientsOf(calls[i], local[i], sums));
    }
    return gradients;
  }
};

}  // namespace

const BatchNormEngine& HostEngine() {
  static const HostBatchNorm kEngine;
  return kEngine;
}

}  // namespace cohort
