#include "worker/batch_norm/scope.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// The overridden operator has a fixed signature, so the step is passed to it in
// a thread-local variable of the thread that runs the model.
thread_local std::shared_ptr<BatchNormScope::Step> current_step;

// Collects the moments that the device has sent.
absl::Status TakePending(BatchNormScope::Step& step) {
  StepContext& context = *step.context;
  for (const PendingMoments& pending : step.pending) {
    COHORT_RETURN_IF_ERROR(
        context.compute.accelerator->Await(pending.block->event()));
    const auto* mean = pending.block->as<double>();
    const double* m2 = mean + pending.channels;
    context.moments.push_back(
        {.layer = pending.layer,
         .call = pending.call,
         .moments = {
             .count = pending.count,
             .first = std::vector<double>(mean, m2),
             .second = std::vector<double>(m2, m2 + pending.channels)}});
  }
  return absl::OkStatus();
}

}  // namespace

BatchNormScope::BatchNormScope(const BatchNormBinding& binding,
                               StepContext* context) {
  COHORT_CHECK(context->backend != nullptr, "a step needs a backend");
  context->calls.assign(binding.layers().size(), 0);
  context->part = 0;
  context->moments.clear();
  context->status = absl::OkStatus();
  outer_ = std::exchange(
      current_step,
      std::make_shared<Step>(Step{.binding = &binding, .context = context}));
}

BatchNormScope::~BatchNormScope() {
  current_step->context->status = TakePending(*current_step);
  // Layers report as they are called, which need not be module order.
  std::sort(current_step->context->moments.begin(),
            current_step->context->moments.end(),
            [](const CallMoments& a, const CallMoments& b) {
              return std::tie(a.layer, a.call) < std::tie(b.layer, b.call);
            });
  current_step->context = nullptr;
  current_step->pending.clear();
  current_step = std::move(outer_);
}

int32_t BatchNormScope::Step::CountCall(int32_t layer) const {
  const size_t layers = binding->layers().size();
  const size_t at =
      static_cast<size_t>(context->part) * layers + static_cast<size_t>(layer);
  std::vector<int32_t>& calls = context->calls;
  if (at >= calls.size()) {
    calls.resize((static_cast<size_t>(context->part) + 1) * layers);
  }
  return calls[at]++;
}

const std::shared_ptr<BatchNormScope::Step>& BatchNormScope::Current() {
  return current_step;
}

}  // namespace cohort
