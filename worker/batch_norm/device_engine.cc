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

// What is wrong with the device ends the step, and names the layer.
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

// Float64 [rows, channels] on the device, not filled.
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

// The rows on the device, for what its lane does from now on.
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

// Two rows that the device has been told to write to pinned memory. The only
// place where a step waits for the device.
Moments Await(const SavedCall& saved, const PinnedBlock& block) {
  const Compute& compute = ComputeOf(saved);
  Expect(saved, compute.pinned->MarkUse(Lane::kCompute, block));
  Expect(saved, compute.accelerator->Await(block.event()));
  const auto* first = block.as<double>();
  const double* second = first + saved.shape.channels;
  return {.count = saved.shape.count(),
          .first = std::vector<double>(first, second),
          .second = std::vector<double>(second, second + saved.shape.channels)};
}

// Of a member without samples.
Moments None(const SavedCall& saved) {
  const auto channels = static_cast<size_t>(saved.shape.channels);
  return {.first = std::vector<double>(channels),
          .second = std::vector<double>(channels)};
}

void LaunchMoments(const SavedCall& saved, const at::Tensor& x, double* mean,
                   double* m2) {
  Expect(saved, ComputeOf(saved).accelerator->Moments({.shape = saved.shape,
                                                       .type = TypeOf(x),
                                                       .x = x.data_ptr(),
                                                       .mean = mean,
                                                       .m2 = m2}));
}

// Normalised by the local batch: the host need not know by what until the step
// is over.
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
                                .call = call.call,
                                .count = count,
                                .channels = saved.shape.channels,
                                .block = block});
  auto by = std::make_shared<Normalizer>();
  by->count = count;
  by->values = moments;
  // In place of M2.
  moments[1]
      .div_(static_cast<double>(std::max<int64_t>(count, 1)))
      .add_(call.epsilon)
      .sqrt_()
      .reciprocal_();
  return by;
}

// Sums of the backward pass over the local batch, to where `first` and `second`
// point; fills tensors.dz.
void LaunchSums(const SavedCall& saved, BackwardTensors& tensors, double* first,
                double* second) {
  const Parameters parameters = ParametersOf(tensors.weight, tensors.bias);
  Expect(saved, ComputeOf(saved).accelerator->BackwardReduce(
                    {.shape = saved.shape,
                     .type = TypeOf(tensors.x),
                     .x = tensors.x.data_ptr(),
                     .dy = tensors.dy.data_ptr(),
                     .mean = Row(saved.by->values, 0),
                     .sum_dy = first,
                     .sum_dy_xmu = second,
                     .relu = saved.call.relu,
                     .y = DataOrNull(tensors.y),
                     .invstd = Row(saved.by->values, 1),
                     .parameter_type = parameters.type,
                     .gamma = DataOrNull(parameters.gamma),
                     .beta = DataOrNull(parameters.beta),
                     .dz = DataOrNull(tensors.dz)}));
}

// What the backward pass needs per channel, on the device.
struct Sums {
  // Of all members, [2, channels]; undefined with frozen statistics.
  at::Tensor all;
  // Gradients of scale and shift in float64.
  at::Tensor dgamma;
  at::Tensor dbeta;
};

// With a rendezvous the sums go by way of the host.
Sums SumsOfAll(const SavedCall& saved, BackwardTensors& tensors) {
  Moments local = None(saved);
  if (saved.shape.count() > 0) {
    const std::shared_ptr<PinnedBlock> block = TakeRows(saved, 2);
    auto* first = block->as<double>();
    LaunchSums(saved, tensors, first, first + saved.shape.channels);
    local = Await(saved, *block);
  }
  const Moments all = Exchange(saved.call, ReducePhase::kBackward, local);
  std::vector<double> dgamma = local.second;
  for (size_t c = 0; c < dgamma.size(); ++c) dgamma[c] *= saved.by->invstd[c];
  const at::Tensor rows =
      Upload(saved, {&all.first, &all.second, &dgamma, &local.first});
  return {.all = rows.narrow(0, 0, 2), .dgamma = rows[2], .dbeta = rows[3]};
}

Sums LocalSums(const SavedCall& saved, BackwardTensors& tensors) {
  const at::Tensor sums = PerChannel(saved, 2);
  if (saved.shape.count() > 0) {
    LaunchSums(saved, tensors, Row(sums, 0), Row(sums, 1));
  } else {
    sums.zero_();
  }
  return {.all = saved.frozen ? at::Tensor() : sums,
          .dgamma = sums[1] * saved.by->values[1],
          .dbeta = sums[0]};
}

at::Tensor InputGradient(const SavedCall& saved, const BackwardTensors& tensors,
                         const at::Tensor& sums) {
  at::Tensor dx = at::empty_like(tensors.x);
  if (saved.shape.count() == 0) return dx;
  const Parameters parameters = ParametersOf(tensors.weight, tensors.bias);
  const bool masked = tensors.dz.defined();
  Expect(saved, ComputeOf(saved).accelerator->BackwardElementwise(
                    {.shape = saved.shape,
                     .type = TypeOf(tensors.x),
                     .x = tensors.x.data_ptr(),
                     .dy = (masked ? tensors.dz : tensors.dy).data_ptr(),
                     .mean = Row(saved.by->values, 0),
                     .invstd = Row(saved.by->values, 1),
                     .parameter_type = parameters.type,
                     .gamma = DataOrNull(parameters.gamma),
                     .sum_dy = sums.defined() ? Row(sums, 0) : nullptr,
                     .sum_dy_xmu = sums.defined() ? Row(sums, 1) : nullptr,
                     .total_count = saved.by->count,
                     .relu = saved.call.relu && !masked,
                     .beta = DataOrNull(parameters.beta),
                     .dx = dx.data_ptr()}));
  return dx;
}

class DeviceBatchNorm final : public BatchNormEngine {
 public:
  std::shared_ptr<const Normalizer> ByBatch(
      const SavedCall& saved, const at::Tensor& x) const override {
    if (saved.call.step->context->rendezvous == nullptr) {
      return ByLocalBatch(saved, x);
    }
    Moments local = None(saved);
    if (saved.shape.count() > 0) {
      const std::shared_ptr<PinnedBlock> block = TakeRows(saved, 2);
      auto* mean = block->as<double>();
      LaunchMoments(saved, x, mean, mean + saved.shape.channels);
      local = Await(saved, *block);
    }
    std::shared_ptr<Normalizer> by = NormalizerOf(
        Exchange(saved.call, ReducePhase::kForward, std::move(local)),
        saved.call.epsilon);
    by->values = Upload(saved, {&by->mean, &by->invstd});
    return by;
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
                      {.shape = saved.shape,
                       .type = TypeOf(x),
                       .x = x.data_ptr(),
                       .mean = Row(saved.by->values, 0),
                       .invstd = Row(saved.by->values, 1),
                       .parameter_type = parameters.type,
                       .gamma = DataOrNull(parameters.gamma),
                       .beta = DataOrNull(parameters.beta),
                       .add = DataOrNull(addend),
                       .relu = saved.call.relu,
                       .y = y.data_ptr()}));
  }

  BatchNormGradients Backward(const SavedCall& saved, BackwardTensors& tensors,
                              const GradientWishes& wishes) const override {
    if (saved.has_addend) tensors.dz = at::empty_like(tensors.x);
    // Needed or not is a property of the model, so all members agree on whether
    // this rendezvous takes place.
    const bool meets = wishes.dx && !saved.frozen &&
                       saved.call.step->context->rendezvous != nullptr;
    Sums sums;
    if (meets) {
      sums = SumsOfAll(saved, tensors);
    } else if ((wishes.dx && !saved.frozen) || wishes.dgamma || wishes.dbeta ||
               saved.has_addend) {
      sums = LocalSums(saved, tensors);
    }
    BatchNormGradients out;
    if (wishes.dx) out.dx = InputGradient(saved, tensors, sums.all);
    if (wishes.dgamma) {
      out.dgamma = sums.dgamma.to(tensors.weight.scalar_type());
    }
    if (wishes.dbeta) out.dbeta = sums.dbeta.to(*saved.bias_type);
    if (wishes.dz) out.dz = tensors.dz;
    return out;
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
