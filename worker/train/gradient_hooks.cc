#include "worker/train/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <utility>

#include "worker/batch_norm/step_interrupted.h"

namespace cohort {

// Called by autograd after it has added to a parameter's gradient.
class GradientHooks::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(const GradientHooks& all, size_t parameter)
      : all_(all), parameter_(parameter) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    if (!all_.sending_) return outputs;
    absl::Status status = all_.session_.Finish(parameter_);
    if (!status.ok()) throw StepInterrupted(std::move(status));
    return outputs;
  }

 private:
  const GradientHooks& all_;
  const size_t parameter_;
};

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters,
                             WorkerSession& session)
    : session_(session),
      accumulators_(parameters.size()),
      hooks_(parameters.size()) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].requires_grad()) continue;
    accumulators_[i] = torch::autograd::impl::grad_accumulator(parameters[i]);
    hooks_[i] =
        accumulators_[i]->add_post_hook(std::make_unique<Hook>(*this, i));
  }
}

GradientHooks::~GradientHooks() {
  // A graph that is still alive may hold an accumulator, and with it the hook.
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (accumulators_[i] != nullptr) accumulators_[i]->del_post_hook(hooks_[i]);
  }
}

}  // namespace cohort
