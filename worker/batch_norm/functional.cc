#include "worker/batch_norm/functional.h"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/batch_norm/batch_norm_function.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

bool UsesBatchStatistics(const BatchNormOperands& layer) {
  return layer.training || !layer.running_mean.defined();
}

// The module's forward without its check of the batch size.
at::Tensor StockBatchNorm(const at::Tensor& x, const BatchNormOperands& layer) {
  const bool by_batch = UsesBatchStatistics(layer);
  // One element has no unbiased variance: the operator would store NaN.
  const bool alone = by_batch && x.numel() == x.size(1);
  double factor = layer.momentum.value_or(0);
  if (layer.training && !alone && layer.num_batches_tracked.defined()) {
    at::Tensor tracked = layer.num_batches_tracked;
    tracked.add_(1);
    if (!layer.momentum.has_value()) factor = 1 / tracked.item<double>();
  }
  return torch::batch_norm(
      x, layer.weight, layer.bias, alone ? at::Tensor() : layer.running_mean,
      alone ? at::Tensor() : layer.running_var, by_batch, factor, layer.epsilon,
      at::globalContext().userEnabledCuDNN());
}

// Absent if no scope binds the layer.
std::optional<BoundCall> Bound(const BatchNormUse& use) {
  const std::shared_ptr<BatchNormScope::Step>& step = BatchNormScope::Current();
  if (step == nullptr) return std::nullopt;
  const BatchNormOperands& layer = use.layer;
  // In eval mode a layer without moving statistics normalises by its own batch,
  // as in PyTorch: evaluation never meets.
  if (!layer.training && !layer.running_mean.defined() &&
      !step->context->normalises_by_batch_in_evaluation) {
    return std::nullopt;
  }
  const std::optional<int32_t> index =
      step->binding->LayerOf(layer.weight, layer.running_mean);
  if (!index.has_value()) return std::nullopt;
  return BoundCall{.tensors = {.input = use.x,
                               .weight = layer.weight,
                               .bias = layer.bias,
                               .running_mean = layer.running_mean,
                               .running_var = layer.running_var,
                               .addend = use.addend},
                   .call = {.step = step,
                            .layer = *index,
                            .epsilon = layer.epsilon,
                            .batch_statistics = UsesBatchStatistics(layer),
                            .relu = use.relu,
                            .adds_next = use.adds_next}};
}

// Makes the calls one by one; layers that no scope binds use the stock
// operator.
std::vector<at::Tensor> CallEach(absl::Span<const BatchNormUse> uses) {
  std::vector<at::Tensor> outputs;
  at::Tensor added;
  for (size_t i = uses.size(); i-- > 0;) {
    BatchNormUse use = uses[i];
    if (use.adds_next) use.addend = std::exchange(added, at::Tensor());
    use.adds_next = false;
    at::Tensor y;
    if (const std::optional<BoundCall> bound = Bound(use); bound.has_value()) {
      y = CohortBatchNorm({*bound}).front();
    } else {
      y = StockBatchNorm(use.x, use.layer);
      if (use.addend.defined()) y.add_(use.addend);
      if (use.relu) y.relu_();
    }
    if (i > 0 && uses[i - 1].adds_next) {
      added = std::move(y);
    } else {
      outputs.push_back(std::move(y));
    }
  }
  std::reverse(outputs.begin(), outputs.end());
  return outputs;
}

}  // namespace

std::vector<at::Tensor> CallBatchNorm(absl::Span<const BatchNormUse> uses) {
  std::vector<BoundCall> calls;
  for (const BatchNormUse& use : uses) {
    std::optional<BoundCall> bound = Bound(use);
    if (!bound.has_value()) return CallEach(uses);
    calls.push_back(*std::move(bound));
  }
  std::vector<at::Tensor> outputs;
  for (size_t begin = 0, end = 0; begin < calls.size(); begin = end) {
    end = std::min(begin + kSiblingsMax, calls.size());
    // A call and the output that is added to it stay in one group.
    if (calls[end - 1].call.adds_next) --end;
    for (at::Tensor& y :
         CohortBatchNorm(absl::MakeSpan(calls).subspan(begin, end - begin))) {
      outputs.push_back(std::move(y));
    }
  }
  return outputs;
}

}  // namespace cohort
