#include <torch/torch.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/batch_norm/engine.h"
#include "worker/batch_norm/step_interrupted.h"
#include "worker/device/accelerator.h"
#include "worker/device/pinned_pool.h"

namespace cohort {
namespace {

constexpr int64_t kDoubleBytes = 8;

const Compute& ComputeOf(const SavedCall& saved) {
  return saved.call.step->context->compute;
}

// An error of the device ends the step; the message names the layer.
void Expect(const SavedCall& saved, const absl::Status& status) {
  if (status.ok()) return;
  throw StepInterrupted(absl::Status(
      status.code(),
      absl::StrCat(SpecOf(saved.call).name, ": ", status.message())));
}

template <typename T>
T Expect(const SavedCall& saved, absl::StatusOr<T> result) {
  Expect(saved, result.status());
  return *std::move(result);
}

// An uninitialised float64 tensor [rows, channels] on the device.
at::Tensor PerChannel(const SavedCall& saved, int64_t rows) {
  return at::empty(
      {rows, saved.shape.channels},
      at::TensorOptions(at::kDouble).device(ComputeOf(saved).torch));
}

double* Row(const at::Tensor& values, int64_t row) {
  return values.data_ptr<double>() + row * values.size(1);
}

std::shared_ptr<PinnedBlock> TakeRows(const SavedCall& saved, int64_t rows) {
  return Expect(saved, ComputeOf(saved).pinned->Take(
                           rows * saved.shape.channels * kDoubleBytes));
}

// Copies the rows to the device; later work in the compute lane sees them.
at::Tensor Upload(const SavedCall& saved,
                  std::initializer_list<const std::vector<double>*> rows) {
  const auto channels = static_cast<size_t>(saved.shape.channels);
  const auto count = static_cast<int64_t>(rows.size());
  at::Tensor values = PerChannel(saved, count);
  if (channels == 0) return values;
  const Compute& compute = ComputeOf(saved);
  const std::shared_ptr<PinnedBlock> block = TakeRows(saved, count);
  auto* to = block->as<double>();
  for (const std::vector<double>* row : rows) {
    to = std::copy(row->begin(), row->end(), to);
  }
  Expect(saved, compute.accelerator->Copy(
                    Lane::kCompute, values.data_ptr(), block->memory(),
                    count * saved.shape.channels * kDoubleBytes));
  Expect(saved, compute.pinned->MarkUse(Lane::kCompute, *block));
  return values;
}

// Two rows that the device writes to pinned memory; zeros if `block` is null.
// This is the only place where a step waits for the device.
Moments Await(const SavedCall& saved,
              const std::shared_ptr<PinnedBlock>& block) {
  const auto channels = static_cast<size_t>(saved.shape.channels);
  if (block == nullptr) {
    return {.first = std::vector<double>(channels),
            .second = std::vector<double>(channels)};
  }
  Expect(saved, ComputeOf(saved).accelerator->Await(block->event()));
  const auto* first = block->as<double>();
  const double* second = first + channels;
  return {.count = saved.shape.count(),
          .first = std::vector<double>(first, second),
          .second = std::vector<double>(second, second + channels)};
}

void LaunchMoments(const SavedCall& saved, const at::Tensor& x, double* mean,
                   double* m2) {
  Expect(saved, ComputeOf(saved).accelerator->Moments({.shape = saved.shape,
                                                       .type = TypeOf(x),
                                                       .x = x.data_ptr(),
                                                       .mean = mean,
                                                       .m2 = m2}));
}

// Normalises by the local batch. The host does not need the numbers before the
// step ends, so nothing waits for them.
std::shared_ptr<Normalizer> ByLocalBatch(const SavedCall& saved,
                                         const at::Tensor& x) {
  const BatchNormCall& call = saved.call;
  const Compute& compute = ComputeOf(saved);
  const int64_t count = saved.shape.count();
  const at::Tensor moments = PerChannel(saved, 2);
  LaunchMoments(saved, x, Row(moments, 0), Row(moments, 1));
  const std::shared_ptr<PinnedBlock> block = TakeRows(saved, 2);
  Expect(saved, compute.accelerator->Copy(
                    Lane::kCompute, block->memory(), moments.data_ptr(),
                    2 * saved.shape.channels * kDoubleBytes));
  Expect(saved, compute.pinned->MarkUse(Lane::kCompute, *block));
  call.step->pending.push_back({.layer = call.layer,
                                .call = NumberInStep(call),
                                .count = count,
                                .channels = saved.shape.channels,
                                .block = block});
  auto by = std::make_shared<Normalizer>();
  by->count = count;
  by->values = moments;
  // Replaces M2 by 1 / sqrt(variance + epsilon).
  moments[1]
      .div_(static_cast<double>(std::max<int64_t>(count, 1)))
      .add_(call.epsilon)
      .sqrt_()
      .reciprocal_();
  return by;
}

// Starts sending the moments of the local batch to pinned memory. Returns null
// for a member without samples.
std::shared_ptr<PinnedBlock> SendMoments(const ForwardCall& call) {
  const SavedCall& saved = *call.saved;
  if (saved.shape.count() == 0) return nullptr;
  std::shared_ptr<PinnedBlock> block = TakeRows(saved, 2);
  auto* mean = block->as<double>();
  LaunchMoments(saved, call.x, mean, mean + saved.shape.channels);
  Expect(saved, ComputeOf(saved).pinned->MarkUse(Lane::kCompute, *block));
  return block;
}

// Writes the backward sums over the local batch to `first` and `second`; fills
// tensors.dz.
void LaunchSums(const BackwardCall& call, double* first, double* second) {
  const SavedCall& saved = *call.saved;
  const Parameters parameters =
      ParametersOf(call.tensors.weight, call.tensors.bias);
  kernels::BackwardReduceArgs args = ReduceArgsOf(call, parameters);
  args.sum_dy = first;
  args.sum_dy_xmu = second;
  Expect(saved, ComputeOf(saved).accelerator->BackwardReduce(args));
}

std::shared_ptr<PinnedBlock> SendSums(const BackwardCall& call) {
  const SavedCall& saved = *call.saved;
  if (saved.shape.count() == 0) return nullptr;
  std::shared_ptr<PinnedBlock> block = TakeRows(saved, 2);
  auto* first = block->as<double>();
  LaunchSums(call, first, first + saved.shape.channels);
  Expect(saved, ComputeOf(saved).pinned->MarkUse(Lane::kCompute, *block));
  return block;
}

// Per-channel values that the backward pass needs, on the device.
struct Sums {
  // Sums over all members, [2, channels]; undefined with frozen statistics.
  at::Tensor all;
  // Gradients of scale and shift in float64.
  at::Tensor dgamma;
  at::Tensor dbeta;
};

Sums SumsOfAll(const SavedCall& saved, const Moments& local,
               const Moments& all) {
  const std::vector<double> dgamma = ScaleGradient(local, *saved.by);
  const at::Tensor rows =
      Upload(saved, {&all.first, &all.second, &dgamma, &local.first});
  return {.all = rows.narrow(0, 0, 2), .dgamma = rows[2], .dbeta = rows[3]};
}

Sums LocalSums(const BackwardCall& call) {
  const SavedCall& saved = *call.saved;
  const at::Tensor sums = PerChannel(saved, 2);
  if (saved.shape.count() > 0) {
    LaunchSums(call, Row(sums, 0), Row(sums, 1));
  } else {
    sums.zero_();
  }
  return {.all = saved.frozen ? at::Tensor() : sums,
          .dgamma = sums[1] * saved.by->values[1],
          .dbeta = sums[0]};
}

// All kernels are launched before the first result is waited for.
std::vector<Sums> SumsOf(absl::Span<const BackwardCall> calls) {
  const BatchNormScope::Step& step = *calls.front().saved->call.step;
  const auto meets = [&step](const BackwardCall& call) {
    return call.NeedsAll() && step.context->rendezvous != nullptr;
  };
  std::vector<Sums> sums(calls.size());
  std::vector<std::shared_ptr<PinnedBlock>> blocks(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    if (meets(calls[i])) {
      blocks[i] = SendSums(calls[i]);
    } else if (calls[i].NeedsSums()) {
      sums[i] = LocalSums(calls[i]);
    }
  }
  std::vector<Contribution> local;
  for (size_t i = 0; i < calls.size(); ++i) {
    const SavedCall& saved = *calls[i].saved;
    if (!meets(calls[i])) continue;
    local.push_back(At(saved, ReducePhase::kBackward, Await(saved, blocks[i])));
  }
  if (local.empty()) return sums;
  const std::vector<Moments> all = Exchange(step, local);
  size_t met = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!meets(calls[i])) continue;
    sums[i] = SumsOfAll(*calls[i].saved, local[met].moments, all[met]);
    ++met;
  }
  return sums;
}

at::Tensor InputGradient(const BackwardCall& call, const at::Tensor& sums) {
  const SavedCall& saved = *call.saved;
  at::Tensor dx = at::empty_like(call.tensors.x);
  if (saved.shape.count() == 0) return dx;
  const Parameters parameters =
      ParametersOf(call.tensors.weight, call.tensors.bias);
  Expect(saved,
         ComputeOf(saved).accelerator->BackwardElementwise(ElementwiseArgsOf(
             call, parameters, sums.defined() ? Row(sums, 0) : nullptr,
             sums.defined() ? Row(sums, 1) : nullptr, dx)));
  return dx;
}

class DeviceBatchNorm final : public BatchNormEngine {
 public:
  std::vector<std::shared_ptr<const Normalizer>> ByBatch(
      absl::Span<const ForwardCall> calls) const override {
    std::vector<std::shared_ptr<const Normalizer>> normalizers;
    const BatchNormScope::Step& step = *calls.front().saved->call.step;
    if (step.context->rendezvous == nullptr) {
      for (const ForwardCall& call : calls) {
        normalizers.push_back(ByLocalBatch(*call.saved, call.x));
      }
      return normalizers;
    }
    // All kernels are launched before the first result is waited for.
    std::vector<std::shared_ptr<PinnedBlock>> blocks;
    for (const ForwardCall& call : calls) blocks.push_back(SendMoments(call));
    std::vector<Contribution> local;
    for (size_t i = 0; i < calls.size(); ++i) {
      const SavedCall& saved = *calls[i].saved;
      local.push_back(At(saved, calls[i].x, Await(saved, blocks[i])));
    }
    std::vector<Moments> all = Exchange(step, std::move(local));
    for (size_t i = 0; i < calls.size(); ++i) {
      const SavedCall& saved = *calls[i].saved;
      auto by = std::make_shared<Normalizer>(
          Normalizer{StatisticsOf(std::move(all[i]), saved.call.epsilon)});
      by->values = Upload(saved, {&by->mean, &by->invstd});
      normalizers.push_back(std::move(by));
    }
    return normalizers;
  }

  std::shared_ptr<const Normalizer> ByStatistics(
      const BatchNormCall& call, const at::Tensor& mean,
      const at::Tensor& variance) const override {
    auto by = std::make_shared<Normalizer>();
    by->values =
        at::stack({mean.detach().to(at::kDouble), variance.detach()
                                                      .to(at::kDouble)
                                                      .add(call.epsilon)
                                                      .sqrt_()
                                                      .reciprocal_()});
    return by;
  }

  void Normalize(const SavedCall& saved, const Parameters& parameters,
                 const at::Tensor& x, const at::Tensor& addend,
                 at::Tensor& y) const override {
    if (saved.shape.count() == 0) return;
    Expect(saved, ComputeOf(saved).accelerator->Normalize(
                      NormalizeArgsOf(saved, parameters, x, addend, y)));
  }

  std::vector<BatchNormGradients> Backward(
      absl::Span<const BackwardCall> calls) const override {
    const std::vector<Sums> sums = SumsOf(calls);
    std::vector<BatchNormGradients> gradients(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      const BackwardCall& call = calls[i];
      BatchNormGradients& out = gradients[i];
      if (call.needed.dx) out.dx = InputGradient(call, sums[i].all);
      if (call.needed.dgamma) {
        out.dgamma = sums[i].dgamma.to(call.tensors.weight.scalar_type());
      }
      if (call.needed.dbeta)
        out.dbeta = sums[i].dbeta.to(*call.saved->bias_type);
    }
    return gradients;
  }
};

}  // namespace

const BatchNormEngine& DeviceEngine() {
  static const DeviceBatchNorm kEngine;
  return kEngine;
}

const BatchNormEngine& EngineOf(const BatchNormCall& call) {
  return call.step->context->compute.accelerator == nullptr ? HostEngine()
                                                            : DeviceEngine();
}

}  // namespace cohort
