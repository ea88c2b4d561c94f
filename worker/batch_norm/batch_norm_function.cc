#include "worker/batch_norm/batch_norm_function.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/backend.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

void CheckPerChannel(const BatchNormSpec& spec, const char* what,
                     const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  TORCH_CHECK(tensor.numel() == spec.channels && FindType(tensor).has_value(),
              spec.name, ": got ", what, " of ", tensor.numel(),
              " elements of type ", tensor.scalar_type(), ", want ",
              spec.channels, " of a floating type");
}

void CheckTensors(const BatchNormSpec& spec, const BatchNormTensors& tensors) {
  const at::Tensor& input = tensors.input;
  TORCH_CHECK(input.dim() >= 2 && input.dim() <= 5, spec.name,
              ": got input with ", input.dim(), " dimensions, want 2 to 5");
  TORCH_CHECK(input.size(1) == spec.channels, spec.name, ": got input with ",
              input.size(1), " channels, want ", spec.channels);
  TORCH_CHECK(FindType(input).has_value(), spec.name, ": got input of type ",
              input.scalar_type(), ", want Float, Double, Half or BFloat16");
  CheckPerChannel(spec, "a weight", ValueOr(tensors.weight));
  CheckPerChannel(spec, "a bias", ValueOr(tensors.bias));
  const at::Tensor addend = ValueOr(tensors.addend);
  if (!addend.defined()) return;
  TORCH_CHECK(addend.sizes() == input.sizes() &&
                  addend.scalar_type() == input.scalar_type(),
              spec.name, ": got ", addend.scalar_type(), " ", addend.sizes(),
              " to add, want ", input.scalar_type(), " ", input.sizes());
}

// How the kernels see `input` once it is contiguous in `format`.
kernels::BatchShape ShapeOf(const at::Tensor& input, at::MemoryFormat format) {
  const int64_t channels = input.size(1);
  if (format == at::MemoryFormat::Contiguous) {
    int64_t inner = 1;
    for (int64_t d = 2; d < input.dim(); ++d) inner *= input.size(d);
    return {.outer = input.size(0), .channels = channels, .inner = inner};
  }
  return {.outer = input.numel() / channels, .channels = channels, .inner = 1};
}

// Scale and shift as the kernels take them.
struct Parameters {
  at::Tensor gamma;
  at::Tensor beta;
  kernels::DataType type = kernels::DataType::kFloat32;
};

Parameters ParametersOf(const at::Tensor& weight, const at::Tensor& bias) {
  Parameters parameters;
  const at::Tensor& any = weight.defined() ? weight : bias;
  if (!any.defined()) return parameters;
  parameters.type = TypeOf(any);
  if (weight.defined()) parameters.gamma = weight.contiguous();
  if (bias.defined()) parameters.beta = bias.to(any.scalar_type()).contiguous();
  return parameters;
}

void* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

// Moments of all members, or the local ones without a rendezvous.
Moments Exchange(const BatchNormCall& call, ReducePhase phase, Moments local) {
  StepContext* context = call.step->context;
  if (context->rendezvous == nullptr) return local;
  absl::StatusOr<Moments> all =
      context->rendezvous->Reduce(call.layer, call.call, phase, local);
  if (!all.ok()) throw StepInterrupted(all.status());
  const auto channels = static_cast<size_t>(SpecOf(call).channels);
  if (all->first.size() != channels || all->second.size() != channels ||
      all->count < local.count) {
    throw StepInterrupted(absl::InternalError(
        absl::StrCat(SpecOf(call).name, ": the rendezvous returned ",
                     all->first.size(), " and ", all->second.size(),
                     " channels and count ", all->count, ", want ", channels,
                     " channels and a count of at least ", local.count)));
  }
  return *std::move(all);
}

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

std::shared_ptr<const Normalizer> ByMoments(Moments moments, double epsilon) {
  auto by = std::make_shared<Normalizer>();
  by->count = moments.count;
  by->invstd.resize(moments.second.size());
  // With nobody's samples there is nothing to normalise; the divisor only
  // keeps 0/0 out of what is saved.
  const double count = static_cast<double>(std::max<int64_t>(moments.count, 1));
  for (size_t c = 0; c < by->invstd.size(); ++c) {
    by->invstd[c] = 1.0 / std::sqrt(moments.second[c] / count + epsilon);
  }
  by->mean = std::move(moments.first);
  return by;
}

std::vector<double> ToDoubles(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
  const double* data = values.data_ptr<double>();
  return std::vector<double>(data, data + values.numel());
}

std::shared_ptr<const Normalizer> ByStatistics(const BatchNormTensors& tensors,
                                               const BatchNormCall& call) {
  const at::Tensor mean = ValueOr(tensors.running_mean);
  const at::Tensor variance = ValueOr(tensors.running_var);
  const BatchNormSpec& spec = SpecOf(call);
  TORCH_CHECK(mean.defined() && variance.defined(), spec.name,
              ": got no moving statistics to normalise by");
  CheckPerChannel(spec, "a running mean", mean);
  CheckPerChannel(spec, "a running variance", variance);
  auto by = std::make_shared<Normalizer>();
  by->mean = ToDoubles(mean);
  by->invstd = ToDoubles(variance);
  for (double& value : by->invstd)
    value = 1.0 / std::sqrt(value + call.epsilon);
  return by;
}

// What a call repeats within a RecomputeScope.
std::shared_ptr<const Normalizer> Repeated(const BatchNormCall& call) {
  const auto& made = call.step->normalizers;
  const auto entry = made.find({call.layer, call.call});
  TORCH_CHECK(entry != made.end(), SpecOf(call).name, ": call ", call.call,
              " is recomputed, but the step has not made it");
  return entry->second;
}

void NormalizeInto(const SavedCall& saved, const Parameters& parameters,
                   const at::Tensor& x, const at::Tensor& addend,
                   at::Tensor& y) {
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

class BatchNormFunction : public torch::autograd::Function<BatchNormFunction> {
 public:
  // `known` is null if the moments of the step are to be found.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input,
                            const OptionalTensor& weight,
                            const OptionalTensor& bias,
                            const OptionalTensor& addend,
                            const BatchNormCall& call, bool frozen,
                            const std::shared_ptr<const Normalizer>& known);
  static variable_list backward(AutogradContext* ctx, variable_list grads);

  static constexpr size_t kArguments = 7;
};

at::Tensor BatchNormFunction::forward(
    AutogradContext* ctx, const at::Tensor& input, const OptionalTensor& weight,
    const OptionalTensor& bias, const OptionalTensor& addend,
    const BatchNormCall& call, bool frozen,
    const std::shared_ptr<const Normalizer>& known) {
  const at::Tensor gamma = ValueOr(weight);
  const at::Tensor beta = ValueOr(bias);
  at::Tensor added = ValueOr(addend);
  auto saved = c10::make_intrusive<SavedCall>();
  saved->call = call;
  saved->frozen = frozen;
  saved->format = input.suggest_memory_format();
  saved->shape = ShapeOf(input, saved->format);
  saved->has_weight = gamma.defined();
  saved->has_addend = added.defined();
  if (beta.defined()) saved->bias_type = beta.scalar_type();

  const at::Tensor x = input.contiguous(saved->format);
  saved->by = known;
  if (known == nullptr) {
    saved->by = ByMoments(ForwardMoments(*saved, x), call.epsilon);
    call.step->normalizers[{call.layer, call.call}] = saved->by;
  }
  if (added.defined()) added = added.contiguous(saved->format);
  at::Tensor y = at::empty_like(x);
  NormalizeInto(*saved, ParametersOf(gamma, beta), x, added, y);

  const bool masked_by_y = call.relu && saved->has_addend;
  const bool masked_by_x = call.relu && !saved->has_addend;
  ctx->save_for_backward({input, gamma, masked_by_x ? beta : at::Tensor(),
                          masked_by_y ? y : at::Tensor()});
  ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(saved));
  return y;
}

variable_list BatchNormFunction::backward(AutogradContext* ctx,
                                          variable_list grads) {
  const auto saved = c10::static_intrusive_pointer_cast<SavedCall>(
      ctx->saved_data["call"].toCapsule());
  // The binding may be gone as well by now, so the layer has no name here.
  if (saved->call.step->context == nullptr) {
    throw StepInterrupted(absl::FailedPreconditionError(
        absl::StrCat("batch-norm layer ", saved->call.layer,
                     ": backward after the step's BatchNormScope ended")));
  }
  TORCH_CHECK(!at::GradMode::is_enabled(), SpecOf(saved->call).name,
              ": batch norm over a cohort has no second derivative "
              "(create_graph is set)");
  const variable_list kept = ctx->get_saved_variables();
  BackwardTensors tensors{.x = kept[0].contiguous(saved->format),
                          .dy = grads[0].contiguous(saved->format),
                          .weight = kept[1],
                          .bias = kept[2],
                          .y = kept[3]};

  // Edges are numbered over the defined tensors only.
  size_t edge = 0;
  const bool needs_dx = ctx->needs_input_grad(edge++);
  const bool needs_dgamma = saved->has_weight && ctx->needs_input_grad(edge++);
  const bool needs_dbeta =
      saved->bias_type.has_value() && ctx->needs_input_grad(edge++);
  const bool needs_dz = saved->has_addend && ctx->needs_input_grad(edge);

  Moments local;
  if ((needs_dx && !saved->frozen) || needs_dgamma || needs_dbeta ||
      saved->has_addend) {
    local = BackwardSums(*saved, tensors);
  }
  variable_list out(kArguments);
  if (needs_dx) out[0] = InputGradient(*saved, tensors, local);
  if (needs_dgamma) {
    std::vector<double> scaled = local.second;
    for (size_t c = 0; c < scaled.size(); ++c)
      scaled[c] *= saved->by->invstd[c];
    out[1] = FromDoubles(scaled, tensors.weight.scalar_type());
  }
  if (needs_dbeta) out[2] = FromDoubles(local.first, *saved->bias_type);
  if (needs_dz) out[3] = tensors.dz;
  return out;
}

}  // namespace

at::Tensor CohortBatchNorm(const BatchNormTensors& tensors,
                           BatchNormCall call) {
  const BatchNormSpec& spec = SpecOf(call);
  CheckTensors(spec, tensors);
  COHORT_CHECK(call.relu || !ValueOr(tensors.addend).defined(),
               "an addend without a ReLU");
  const bool by_batch = call.batch_statistics ||
                        call.step->context->normalises_by_batch_in_evaluation;
  const bool frozen = !by_batch || call.step->binding->IsFrozen(call.layer);
  std::shared_ptr<const Normalizer> known;
  if (frozen) {
    known = ByStatistics(tensors, call);
  } else {
    call.call = call.step->context->calls[static_cast<size_t>(call.layer)]++;
    if (call.step->recomputing) known = Repeated(call);
  }
  // A layer that is not affine may carry a constant weight as its identity;
  // multiplying by it would cost time and change nothing.
  const OptionalTensor gamma = spec.affine ? tensors.weight : OptionalTensor();
  return BatchNormFunction::apply(
      tensors.input, gamma, tensors.bias, tensors.addend,
      static_cast<const BatchNormCall&>(call), static_cast<const bool&>(frozen),
      static_cast<const std::shared_ptr<const Normalizer>&>(known));
}

}  // namespace cohort
