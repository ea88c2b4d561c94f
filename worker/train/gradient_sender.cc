#include "worker/train/gradient_sender.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/batch_norm/step_interrupted.h"

namespace cohort {

// Called by autograd after it has added to a parameter's gradient.
class GradientSender::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(GradientSender* sender, size_t parameter)
      : sender_(sender), parameter_(parameter) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    absl::Status status = sender_->OnFinal(parameter_);
    if (!status.ok()) throw StepInterrupted(std::move(status));
    return outputs;
  }

 private:
  GradientSender* const sender_;
  const size_t parameter_;
};

GradientSender::GradientSender(const ModelWeights& weights, Client& client,
                               WeightTransfer* transfer,
                               std::vector<int32_t> order)
    : weights_(weights),
      client_(client),
      transfer_(transfer),
      schedule_(weights.partitions(), weights.parameters().size(),
                std::move(order)) {
  accumulators_.resize(weights.parameters().size());
  hooks_.resize(accumulators_.size());
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    const at::Tensor& tensor = weights.parameters()[i];
    if (!tensor.requires_grad()) continue;
    accumulators_[i] = torch::autograd::impl::grad_accumulator(tensor);
    hooks_[i] =
        accumulators_[i]->add_post_hook(std::make_unique<Hook>(this, i));
  }
  Begin();
}

GradientSender::~GradientSender() {
  // A graph that is still alive may hold an accumulator, and with it the hook.
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (accumulators_[i] != nullptr) accumulators_[i]->del_post_hook(hooks_[i]);
  }
}

void GradientSender::Begin() {
  // Drops gradients of a push that was given up.
  if (transfer_ != nullptr) transfer_->Drop();
  sending_ = false;
  schedule_.Begin();
}

void GradientSender::SendDuringNextPass() { sending_ = true; }

absl::Status GradientSender::SendRest() {
  COHORT_RETURN_IF_ERROR(SendAll(schedule_.Rest()));
  COHORT_RETURN_IF_ERROR(SendFetched(/*wait=*/true));
  sending_ = false;
  return absl::OkStatus();
}

absl::Status GradientSender::OnFinal(size_t parameter) {
  if (!sending_) return absl::OkStatus();
  if (schedule_.IsFinal(parameter)) {
    return absl::InternalError(
        absl::StrCat(weights_.layout().parameters[parameter].name,
                     ": got a second gradient in one backward pass, want one: "
                     "its partition may already have been sent"));
  }
  COHORT_RETURN_IF_ERROR(SendAll(schedule_.Finish(parameter)));
  return SendFetched(/*wait=*/false);
}

absl::Status GradientSender::SendAll(absl::Span<const int32_t> partitions) {
  for (const int32_t partition : partitions) {
    if (transfer_ != nullptr) {
      COHORT_RETURN_IF_ERROR(transfer_->Fetch(partition));
      continue;
    }
    ModelWeights::Gradient gradient = weights_.GradientOf(partition);
    COHORT_RETURN_IF_ERROR(client_.SendGradient(
        partition, std::move(gradient.bytes), gradient.absent_slices));
  }
  return absl::OkStatus();
}

absl::Status GradientSender::SendFetched(bool wait) {
  if (transfer_ == nullptr) return absl::OkStatus();
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(std::optional<WeightTransfer::Fetched> fetched,
                            transfer_->Take(wait));
    if (!fetched.has_value()) return absl::OkStatus();
    COHORT_RETURN_IF_ERROR(client_.SendGradient(
        fetched->partition, std::move(fetched->gradient.bytes),
        fetched->gradient.absent_slices));
  }
}

}  // namespace cohort
