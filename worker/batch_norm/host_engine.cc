#include <torch/torch.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "worker/batch_norm/call.h"
#include "worker/batch_norm/engine.h"

namespace cohort {
namespace {

const kernels::Backend& BackendOf(const SavedCall& saved) {
  return *saved.call.step->context->backend;
}

// `all` is null if the statistics are constants.
at::Tensor InputGradient(const BackwardCall& call, const Moments* all) {
  at::Tensor dx = at::empty_like(call.tensors.x);
  const Parameters parameters =
      ParametersOf(call.tensors.weight, call.tensors.bias);
  BackendOf(*call.saved)
      .BackwardElementwise(ElementwiseArgsOf(
          call, parameters, all == nullptr ? nullptr : all->first.data(),
          all == nullptr ? nullptr : all->second.data(), dx));
  return dx;
}

// The backward sums over the local batch; fills tensors.dz.
Moments SumsOf(const BackwardCall& call) {
  const Parameters parameters =
      ParametersOf(call.tensors.weight, call.tensors.bias);
  return BackwardSums(BackendOf(*call.saved), ReduceArgsOf(call, parameters));
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
    out.dgamma = FromDoubles(ScaleGradient(local, *saved.by),
                             call.tensors.weight.scalar_type());
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
      const SavedCall& saved = *call.saved;
      local.push_back(
          At(saved, call.x,
             LocalMoments(BackendOf(saved), {.shape = saved.shape,
                                             .type = TypeOf(call.x),
                                             .x = call.x.data_ptr()})));
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
      by.push_back(std::make_shared<Normalizer>(Normalizer{
          StatisticsOf(std::move(all[i]), calls[i].saved->call.epsilon)}));
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
    BackendOf(saved).Normalize(
        NormalizeArgsOf(saved, parameters, x, addend, y));
  }

  std::vector<BatchNormGradients> Backward(
      absl::Span<const BackwardCall> calls) const override {
    std::vector<Moments> local(calls.size());
    std::vector<Contribution> sent;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].NeedsSums()) local[i] = SumsOf(calls[i]);
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
