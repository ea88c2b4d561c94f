#include "worker/batch_norm/batch_norm_function.h"

#include <torch/torch.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "worker/batch_norm/call.h"
#include "worker/batch_norm/engine.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void CheckPerChannel(const BatchNormSpec& spec, const char* what,
                     const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  TORCH_CHECK(tensor.numel() == spec.channels && FindType(tensor).has_value(),
              spec.name, ": got ", what, " of ", tensor.numel(),
              " elements of type ", tensor.scalar_type(), ", want ",
              spec.channels, " of a floating type");
}

void CheckTensors(const BatchNormSpec& spec, const BatchNormTensors& tensors,
                  const Compute& compute) {
  const at::Tensor& input = tensors.input;
  TORCH_CHECK(input.device() == compute.torch, spec.name, ": got input on ",
              input.device(), ", but the step computes on ", compute.torch);
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

std::shared_ptr<const Normalizer> ByStatistics(const BatchNormTensors& tensors,
                                               const BatchNormCall& call) {
  const at::Tensor mean = ValueOr(tensors.running_mean);
  const at::Tensor variance = ValueOr(tensors.running_var);
  const BatchNormSpec& spec = SpecOf(call);
  TORCH_CHECK(mean.defined() && variance.defined(), spec.name,
              ": got no moving statistics to normalise by");
  CheckPerChannel(spec, "a running mean", mean);
  CheckPerChannel(spec, "a running variance", variance);
  return EngineOf(call).ByStatistics(call, mean, variance);
}

void Mark(const BatchNormCall& call, ReducePhase phase,
          const at::Tensor& input) {
  LayerMark* const reached = call.step->context->reached;
  if (reached == nullptr) return;
  *reached = {.layer = SpecOf(call).name,
              .phase = phase,
              .type = input.scalar_type(),
              .shape = input.sizes().vec()};
}

// What a call repeats within a RecomputeScope.
std::shared_ptr<const Normalizer> Repeated(const BatchNormCall& call) {
  const auto& made = call.step->normalizers;
  const auto entry = made.find({call.layer, call.call});
  TORCH_CHECK(entry != made.end(), SpecOf(call).name, ": call ", call.call,
              " is recomputed, but the step has not made it");
  return entry->second;
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

  const BatchNormEngine& engine = EngineOf(call);
  const at::Tensor x = input.contiguous(saved->format);
  saved->by = known;
  if (known == nullptr) {
    saved->by = engine.ByBatch(*saved, x);
    call.step->normalizers[{call.layer, call.call}] = saved->by;
  }
  if (added.defined()) added = added.contiguous(saved->format);
  at::Tensor y = at::empty_like(x);
  engine.Normalize(*saved, ParametersOf(gamma, beta), x, added, y);

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
  Mark(saved->call, ReducePhase::kBackward, kept[0]);
  BackwardTensors tensors{.x = kept[0].contiguous(saved->format),
                          .dy = grads[0].contiguous(saved->format),
                          .weight = kept[1],
                          .bias = kept[2],
                          .y = kept[3]};

  // Edges are numbered over the defined tensors only.
  size_t edge = 0;
  GradientWishes wishes;
  wishes.dx = ctx->needs_input_grad(edge++);
  wishes.dgamma = saved->has_weight && ctx->needs_input_grad(edge++);
  wishes.dbeta = saved->bias_type.has_value() && ctx->needs_input_grad(edge++);
  wishes.dz = saved->has_addend && ctx->needs_input_grad(edge);

  const BatchNormGradients gradients =
      EngineOf(saved->call).Backward(*saved, tensors, wishes);
  variable_list out(kArguments);
  out[0] = gradients.dx;
  out[1] = gradients.dgamma;
  out[2] = gradients.dbeta;
  out[3] = gradients.dz;
  return out;
}

}  // namespace

at::Tensor CohortBatchNorm(const BatchNormTensors& tensors,
                           BatchNormCall call) {
  const BatchNormSpec& spec = SpecOf(call);
  CheckTensors(spec, tensors, call.step->context->compute);
  Mark(call, ReducePhase::kForward, tensors.input);
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
