#include "worker/batch_norm/batch_norm_function.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
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

void CheckAddend(const BatchNormSpec& spec, const at::Tensor& input,
                 const at::Tensor& addend) {
  TORCH_CHECK(addend.sizes() == input.sizes() &&
                  addend.scalar_type() == input.scalar_type(),
              spec.name, ": got ", addend.scalar_type(), " ", addend.sizes(),
              " to add, want ", input.scalar_type(), " ", input.sizes());
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
  if (addend.defined()) CheckAddend(spec, input, addend);
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
              ": got no moving statistics to normalise with");
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

// State of calls that are answered together, saved for their backward pass.
struct SavedCalls : torch::CustomClassHolder {
  std::vector<SavedCall> calls;
};

// Tensors of one call that may have gradients.
enum Operand : size_t { kInput, kScale, kShift, kAddend, kOperands };
// Tensors of one call that are saved for the backward pass. The mask of a ReLU
// needs the shift or the output.
enum Kept : size_t {
  kKeptInput,
  kKeptScale,
  kKeptShift,
  kKeptOutput,
  kKept,
};

// Whether the output of call i is the addend of call i - 1.
bool IsAdded(const std::vector<SavedCall>& calls, size_t i) {
  return i > 0 && calls[i - 1].call.adds_next;
}

// Whether the addend is an operand of the call itself, not the next output.
bool HasOwnAddend(const SavedCall& saved) {
  return saved.has_addend && !saved.call.adds_next;
}

// Fills in the fields that follow from the tensors.
void Describe(std::vector<SavedCall>& calls,
              absl::Span<const OptionalTensor> operands) {
  for (size_t i = 0; i < calls.size(); ++i) {
    SavedCall& saved = calls[i];
    const at::Tensor& input = *operands[kOperands * i + kInput];
    const at::Tensor beta = ValueOr(operands[kOperands * i + kShift]);
    saved.format =
        IsAdded(calls, i) ? calls[i - 1].format : input.suggest_memory_format();
    saved.shape = ShapeOf(input, saved.format);
    saved.has_weight = ValueOr(operands[kOperands * i + kScale]).defined();
    if (beta.defined()) saved.bias_type = beta.scalar_type();
    saved.has_addend = saved.call.adds_next ||
                       ValueOr(operands[kOperands * i + kAddend]).defined();
  }
}

// Normalises the calls that have no normalizer yet by the moments of the step.
void MeetOthers(std::vector<SavedCall>& calls,
                const std::vector<at::Tensor>& inputs) {
  std::vector<ForwardCall> meeting;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].by == nullptr) {
      meeting.push_back({.saved = &calls[i], .x = inputs[i]});
    }
  }
  if (meeting.empty()) return;
  const auto found = EngineOf(calls.front().call).ByBatch(meeting);
  auto next = found.begin();
  for (SavedCall& saved : calls) {
    if (saved.by == nullptr) saved.by = *next++;
  }
}

variable_list Forward(AutogradContext* ctx,
                      const c10::intrusive_ptr<SavedCalls>& saved,
                      absl::Span<const OptionalTensor> operands) {
  std::vector<SavedCall>& calls = saved->calls;
  Describe(calls, operands);
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < calls.size(); ++i) {
    inputs.push_back(
        operands[kOperands * i + kInput]->contiguous(calls[i].format));
  }
  MeetOthers(calls, inputs);

  variable_list kept(kKept * calls.size());
  variable_list outputs;
  at::Tensor added;
  for (size_t i = calls.size(); i-- > 0;) {
    const SavedCall& one = calls[i];
    const OptionalTensor* const own = &operands[kOperands * i];
    const at::Tensor gamma = ValueOr(own[kScale]);
    const at::Tensor beta = ValueOr(own[kShift]);
    if (ValueOr(own[kAddend]).defined()) {
      added = own[kAddend]->contiguous(one.format);
    }
    at::Tensor y = at::empty_like(inputs[i]);
    EngineOf(one.call).Normalize(one, ParametersOf(gamma, beta), inputs[i],
                                 std::exchange(added, at::Tensor()), y);
    const bool masked_by_y = one.call.relu && one.has_addend;
    const bool masked_by_x = one.call.relu && !one.has_addend;
    kept[kKept * i + kKeptInput] = *own[kInput];
    kept[kKept * i + kKeptScale] = gamma;
    if (masked_by_x) kept[kKept * i + kKeptShift] = beta;
    if (masked_by_y) kept[kKept * i + kKeptOutput] = y;
    if (IsAdded(calls, i)) {
      added = std::move(y);
    } else {
      outputs.push_back(std::move(y));
    }
  }
  std::reverse(outputs.begin(), outputs.end());
  ctx->save_for_backward(std::move(kept));
  ctx->saved_data["calls"] = c10::IValue::make_capsule(saved);
  return outputs;
}

// `edge` counts the defined operands of all calls, as autograd numbers them.
NeededGradients NeededGradientsOf(const AutogradContext& ctx,
                                  const SavedCall& saved, size_t& edge) {
  NeededGradients needed;
  needed.dx = ctx.needs_input_grad(edge++);
  needed.dgamma = saved.has_weight && ctx.needs_input_grad(edge++);
  needed.dbeta = saved.bias_type.has_value() && ctx.needs_input_grad(edge++);
  // Skip the addend: its gradient is computed in any case.
  if (HasOwnAddend(saved)) ++edge;
  return needed;
}

// `outputs` are the gradients of the outputs.
std::vector<BackwardCall> CallsOf(AutogradContext* ctx,
                                  const std::vector<SavedCall>& saved,
                                  const variable_list& outputs) {
  const variable_list kept = ctx->get_saved_variables();
  std::vector<BackwardCall> calls;
  size_t edge = 0;
  size_t output = 0;
  for (size_t i = 0; i < saved.size(); ++i) {
    const SavedCall& one = saved[i];
    const at::Tensor* const own = &kept[kKept * i];
    Mark(one.call, ReducePhase::kBackward, own[kKeptInput]);
    BackwardCall call{.saved = &one,
                      .tensors = {.x = own[kKeptInput].contiguous(one.format),
                                  .weight = own[kKeptScale],
                                  .bias = own[kKeptShift],
                                  .y = own[kKeptOutput]},
                      .needed = NeededGradientsOf(*ctx, one, edge)};
    call.tensors.dy = IsAdded(saved, i)
                          ? calls.back().tensors.dz
                          : outputs[output++].contiguous(one.format);
    if (one.has_addend) call.tensors.dz = at::empty_like(call.tensors.x);
    calls.push_back(std::move(call));
  }
  return calls;
}

// One node of the graph for calls that are answered together.
class BatchNormFunction : public torch::autograd::Function<BatchNormFunction> {
 public:
  // `operands` are kOperands for each call.
  template <typename... Operands>
  static variable_list forward(AutogradContext* ctx,
                               const c10::intrusive_ptr<SavedCalls>& saved,
                               const Operands&... operands) {
    const std::array<OptionalTensor, sizeof...(Operands)> all = {operands...};
    return Forward(ctx, saved, all);
  }
  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads);
};

variable_list BatchNormFunction::backward(AutogradContext* ctx,
                                          const variable_list& grads) {
  const auto saved = c10::static_intrusive_pointer_cast<SavedCalls>(
      ctx->saved_data["calls"].toCapsule());
  const BatchNormCall& any = saved->calls.front().call;
  // The binding may be gone too, so the error cannot name the layer.
  if (any.step->context == nullptr) {
    throw StepInterrupted(absl::FailedPreconditionError(absl::StrCat(
        "batch-norm layer ", any.layer,
        ": backward ran after the step's BatchNormScope had ended")));
  }
  TORCH_CHECK(!at::GradMode::is_enabled(), SpecOf(any).name,
              ": batch norm over all workers has no second derivative "
              "(create_graph is set)");
  const std::vector<BackwardCall> calls = CallsOf(ctx, saved->calls, grads);
  const std::vector<BatchNormGradients> gradients =
      EngineOf(any).Backward(calls);
  // The calls themselves have no gradient.
  variable_list out(1);
  for (size_t i = 0; i < calls.size(); ++i) {
    out.push_back(gradients[i].dx);
    out.push_back(gradients[i].dgamma);
    out.push_back(gradients[i].dbeta);
    out.push_back(HasOwnAddend(*calls[i].saved) ? calls[i].tensors.dz
                                                : at::Tensor());
  }
  return out;
}

// Counts the call, and finds its normalizer if that does not depend on the
// batch.
SavedCall Prepare(const BoundCall& bound, bool added) {
  SavedCall saved{.call = bound.call};
  BatchNormCall& call = saved.call;
  const BatchNormTensors& tensors = bound.tensors;
  const BatchNormScope::Step& step = *call.step;
  CheckTensors(SpecOf(call), tensors, step.context->compute);
  Mark(call, ReducePhase::kForward, tensors.input);
  const bool adds = call.adds_next || ValueOr(tensors.addend).defined();
  COHORT_CHECK(call.relu || !adds, "an addend without a ReLU");
  COHORT_CHECK(!added || !call.relu, "a ReLU before it is added");
  const bool by_batch =
      call.batch_statistics || step.context->normalises_by_batch_in_evaluation;
  saved.frozen = !by_batch || step.binding->IsFrozen(call.layer);
  if (saved.frozen) {
    saved.by = ByStatistics(tensors, call);
  } else {
    call.part = step.context->part;
    call.call = step.CountCall(call.layer);
  }
  return saved;
}

template <size_t... kIndex>
std::vector<at::Tensor> Apply(const c10::intrusive_ptr<SavedCalls>& saved,
                              const std::vector<OptionalTensor>& operands,
                              std::index_sequence<kIndex...> /*count*/) {
  return BatchNormFunction::apply(saved, operands[kIndex]...);
}

}  // namespace

std::vector<at::Tensor> CohortBatchNorm(absl::Span<const BoundCall> calls) {
  const auto saved = c10::make_intrusive<SavedCalls>();
  std::vector<SavedCall>& prepared = saved->calls;
  std::vector<OptionalTensor> operands;
  for (size_t i = 0; i < calls.size(); ++i) {
    const BatchNormTensors& tensors = calls[i].tensors;
    if (IsAdded(prepared, i)) {
      CheckAddend(SpecOf(calls[i - 1].call), calls[i - 1].tensors.input,
                  tensors.input);
    }
    prepared.push_back(Prepare(calls[i], IsAdded(prepared, i)));
    // A layer that is not affine may carry a constant weight as its identity;
    // multiplying by it would cost time and change nothing.
    const bool affine = SpecOf(calls[i].call).affine;
    operands.insert(operands.end(),
                    {tensors.input, affine ? tensors.weight : OptionalTensor(),
                     tensors.bias, tensors.addend});
  }
  COHORT_CHECK(!prepared.back().call.adds_next, "the last call adds the next");
  static_assert(kSiblingsMax == 4);
  switch (calls.size()) {
    case 1:
      return Apply(saved, operands, std::make_index_sequence<kOperands>());
    case 2:
      return Apply(saved, operands, std::make_index_sequence<2 * kOperands>());
    case 3:
      return Apply(saved, operands, std::make_index_sequence<3 * kOperands>());
    case 4:
      return Apply(saved, operands, std::make_index_sequence<4 * kOperands>());
    default:
      COHORT_CHECK(false, "more calls together than siblings");
      return {};
  }
}

}  // namespace cohort
