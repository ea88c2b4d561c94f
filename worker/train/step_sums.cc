#include "worker/train/step_sums.h"

#include <torch/torch.h>

#include <utility>

#include "common/status_macros.h"
#include "worker/datasets/dataset.h"

namespace cohort {

absl::Status StepSums::Add(const at::Tensor& loss_sum, const at::Tensor& logits,
                           const Batch& batch) {
  // An ignored label is not a class, so no prediction equals it.
  const at::Tensor correct = logits.detach().argmax(1).eq(batch.labels).sum();
  Part part{.labels =
                batch.host_labels.ne(kIgnoredLabel).sum().item<int64_t>()};
  if (compute_.accelerator == nullptr) {
    part.loss_sum = loss_sum.item<double>();
    part.correct = correct.item<int64_t>();
  } else {
    const at::Tensor both =
        at::stack({loss_sum.detach(), correct.to(at::kDouble)});
    COHORT_ASSIGN_OR_RETURN(part.block,
                            compute_.pinned->Take(2 * sizeof(double)));
    COHORT_RETURN_IF_ERROR(
        compute_.accelerator->Copy(Lane::kCompute, part.block->memory(),
                                   both.data_ptr(), 2 * sizeof(double)));
    COHORT_RETURN_IF_ERROR(
        compute_.pinned->MarkUse(Lane::kCompute, *part.block));
  }
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status StepSums::AddTo(PushClosing& closing) {
  for (Part& part : parts_) {
    if (part.block != nullptr) {
      COHORT_RETURN_IF_ERROR(compute_.accelerator->Await(part.block->event()));
      const auto* both = part.block->as<double>();
      part.loss_sum = both[0];
      part.correct = static_cast<int64_t>(both[1]);
    }
    closing.loss_sum += part.loss_sum;
    closing.correct += part.correct;
    closing.labels += part.labels;
  }
  parts_.clear();
  return absl::OkStatus();
}

}  // namespace cohort
