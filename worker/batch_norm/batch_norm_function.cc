#include "worker/batch_norm/batch_norm_function.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Everything of a call that its backward pass needs besides tensors.
struct SavedCall : torch::CustomClassHolder {
  BatchNormCall call;
  kernels::BatchShape shape;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  int64_t total_count = 0;
  std::vector<double> mean;
  std::vector<double> invstd;
};

const BatchNormSpec& SpecOf(const BatchNormCall& call) {
  return call.step->binding->layers()[static_cast<size_t>(call.layer)];
}

kernels::DataType TypeOf(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? kernels::DataType::kFloat64
                                             : kernels::DataType::kFloat32;
}

void CheckInput(const BatchNormSpec& spec, const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2 && input.dim() <= 5, spec.name,
              ": got input with ", input.dim(), " dimensions, want 2 to 5");
  TORCH_CHECK(input.size(1) == spec.channels, spec.name, ": got input with ",
              input.size(1), " channels, want ", spec.channels);
  TORCH_CHECK(
      input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble,
      spec.name, ": got input of type ", input.scalar_type(),
      ", want Float or Double");
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

// The tensor, contiguous and of the input's type; undefined if `parameter` is
// absent.
at::Tensor Operand(const at::Tensor& parameter, const at::Tensor& input) {
  if (!parameter.defined()) return parameter;
  return parameter.to(input.scalar_type()).contiguous();
}

const void* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

at::Tensor ValueOr(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
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

Moments ForwardMoments(const SavedCall& saved, const at::Tensor& input) {
  const BatchNormCall& call = saved.call;
  const auto channels = static_cast<size_t>(saved.shape.channels);
  Moments local{.count = saved.shape.count(),
                .first = std::vector<double>(channels),
                .second = std::vector<double>(channels)};
  StepContext* context = call.step->context;
  if (local.count > 0) {
    context->backend->Moments({.shape = saved.shape,
                               .type = TypeOf(input),
                               .x = input.data_ptr(),
                               .mean = local.first.data(),
                               .m2 = local.second.data()});
  }
  if (context->rendezvous == nullptr) {
    context->moments.push_back(
        {.layer = call.layer, .call = call.call, .moments = local});
  }
  return Exchange(call, ReducePhase::kForward, std::move(local));
}

Moments BackwardSums(const SavedCall& saved, const at::Tensor& input,
                     const at::Tensor& dy) {
  const auto channels = static_cast<size_t>(saved.shape.channels);
  Moments sums{.count = saved.shape.count(),
               .first = std::vector<double>(channels),
               .second = std::vector<double>(channels)};
  if (sums.count > 0) {
    saved.call.step->context->backend->BackwardReduce(
        {.shape = saved.shape,
         .type = TypeOf(input),
         .x = input.data_ptr(),
         .dy = dy.data_ptr(),
         .mean = saved.mean.data(),
         .sum_dy = sums.first.data(),
         .sum_dy_xmu = sums.second.data()});
  }
  return sums;
}

at::Tensor FromDoubles(const std::vector<double>& values,
                       const at::Tensor& like) {
  return torch::tensor(values, torch::kDouble).to(like.scalar_type());
}

class BatchNormFunction : public torch::autograd::Function<BatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input,
                            const OptionalTensor& weight,
                            const OptionalTensor& bias,
                            const BatchNormCall& call);
  static variable_list backward(AutogradContext* ctx, variable_list grads);
};

at::Tensor BatchNormFunction::forward(AutogradContext* ctx,
                                      const at::Tensor& input,
                                      const OptionalTensor& weight,
                                      const OptionalTensor& bias,
                                      const BatchNormCall& call) {
  auto saved = c10::make_intrusive<SavedCall>();
  saved->call = call;
  saved->format = input.suggest_memory_format();
  saved->shape = ShapeOf(input, saved->format);
  const at::Tensor x = input.contiguous(saved->format);
  const at::Tensor gamma = Operand(ValueOr(weight), x);
  const at::Tensor beta = Operand(ValueOr(bias), x);

  Moments moments = ForwardMoments(*saved, x);
  saved->total_count = moments.count;
  saved->invstd.resize(moments.second.size());
  for (size_t c = 0; c < moments.second.size(); ++c) {
    // With nobody's samples there is nothing to normalise; the divisor only
    // keeps 0/0 out of what is saved.
    const double count =
        static_cast<double>(std::max<int64_t>(moments.count, 1));
    saved->invstd[c] =
        1.0 / std::sqrt(moments.second[c] / count + call.epsilon);
  }
  saved->mean = std::move(moments.first);

  at::Tensor y = at::empty_like(x);
  if (saved->shape.count() > 0) {
    call.step->context->backend->Normalize({.shape = saved->shape,
                                            .type = TypeOf(x),
                                            .x = x.data_ptr(),
                                            .mean = saved->mean.data(),
                                            .invstd = saved->invstd.data(),
                                            .parameter_type = TypeOf(x),
                                            .gamma = DataOrNull(gamma),
                                            .beta = DataOrNull(beta),
                                            .y = y.data_ptr()});
  }
  ctx->save_for_backward({input, ValueOr(weight)});
  ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(saved));
  ctx->saved_data["has_weight"] = weight.has_value() && weight->defined();
  ctx->saved_data["has_bias"] = bias.has_value() && bias->defined();
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
  const variable_list tensors = ctx->get_saved_variables();
  const at::Tensor x = tensors[0].contiguous(saved->format);
  const at::Tensor& weight = tensors[1];
  const at::Tensor dy = grads[0].contiguous(saved->format);
  const Moments local = BackwardSums(*saved, x, dy);

  // Edges are numbered over the defined tensors only.
  size_t edge = 0;
  variable_list out(4);
  if (ctx->needs_input_grad(edge++)) {
    // Needed or not is a property of the model, so all members agree on
    // whether this rendezvous takes place.
    const Moments all = Exchange(saved->call, ReducePhase::kBackward, local);
    const at::Tensor gamma = Operand(weight, x);
    out[0] = at::empty_like(x);
    if (saved->shape.count() > 0) {
      saved->call.step->context->backend->BackwardElementwise(
          {.shape = saved->shape,
           .type = TypeOf(x),
           .x = x.data_ptr(),
           .dy = dy.data_ptr(),
           .mean = saved->mean.data(),
           .invstd = saved->invstd.data(),
           .parameter_type = TypeOf(x),
           .gamma = DataOrNull(gamma),
           .sum_dy = all.first.data(),
           .sum_dy_xmu = all.second.data(),
           .total_count = saved->total_count,
           .dx = out[0].data_ptr()});
    }
  }
  if (ctx->saved_data["has_weight"].toBool() && ctx->needs_input_grad(edge++)) {
    std::vector<double> scaled = local.second;
    for (size_t c = 0; c < scaled.size(); ++c) scaled[c] *= saved->invstd[c];
    out[1] = FromDoubles(scaled, weight);
  }
  if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(edge)) {
    out[2] = FromDoubles(local.first, weight.defined() ? weight : x);
  }
  return out;
}

}  // namespace

at::Tensor CohortBatchNorm(const at::Tensor& input,
                           const OptionalTensor& weight,
                           const OptionalTensor& bias, BatchNormCall call) {
  CheckInput(SpecOf(call), input);
  // A layer that is not affine may carry a constant weight as its identity;
  // multiplying by it would cost time and change nothing.
  const bool affine = SpecOf(call).affine;
  const OptionalTensor gamma = affine ? weight : OptionalTensor();
  call.call = call.step->context->calls[static_cast<size_t>(call.layer)]++;
  return BatchNormFunction::apply(input, gamma, bias,
                                  static_cast<const BatchNormCall&>(call));
}

}  // namespace cohort
