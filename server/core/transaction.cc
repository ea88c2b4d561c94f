#include "server/core/transaction.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

Transaction::Transaction(Plan plan) : plan_(std::move(plan)) {
  if (plan_.loss_weight > 0) {
    gradient_scale_ = plan_.model->plan.loss_reference / plan_.loss_weight;
  }
  results_.resize(plan_.model->partitions.size());
  for (const Partition& partition : plan_.model->partitions) {
    started_.push_back(!partition.trainable);
    if (partition.trainable) ++missing_;
  }
}

FoldJob Transaction::Fold(int32_t partition,
                          const std::vector<std::pair<Rank, Push*>>& pushes) {
  const auto p = static_cast<size_t>(partition);
  COHORT_CHECK(!started_[p], absl::StrCat("partition ", partition));
  const Partition& shape = plan_.model->partitions[p];
  const OptimizerOptions& o = plan_.optimizer;
  FoldJob job{.transaction = plan_.id,
              .partition = partition,
              .weights = plan_.base->weights[p],
              .velocity = plan_.base->velocities[p]};
  std::vector<size_t> absent(shape.slices.size(), 0);
  for (const auto& [rank, push] : pushes) {
    for (int32_t slice : push->absent_slices(partition)) {
      ++absent[static_cast<size_t>(slice)];
    }
    job.contributions.push_back(
        {.rank = rank, .gradient = push->TakeGradient(partition)});
  }
  for (size_t i = 0; i < shape.slices.size(); ++i) {
    const Slice& slice = shape.slices[i];
    const ParameterSpec& parameter =
        plan_.model->layout.parameters[static_cast<size_t>(slice.parameter)];
    const bool decays = o.decay_everything || !parameter.decay_exempt;
    job.slices.push_back(
        {.count = slice.count,
         .step = {.gradient_scale = static_cast<float>(gradient_scale_),
                  .learning_rate = static_cast<float>(plan_.learning_rate),
                  .weight_decay =
                      decays ? static_cast<float>(o.weight_decay) : 0.0f,
                  .momentum =
                      o.uses_momentum() ? static_cast<float>(o.momentum) : 0.0f,
                  .nesterov = o.kind == OptimizerKind::kNesterov},
         .skip = absent[i] == pushes.size()});
  }
  started_[p] = true;
  return job;
}

void Transaction::Done(FoldResult result) {
  const auto p = static_cast<size_t>(result.partition);
  COHORT_CHECK(started_[p] && !results_[p].has_value(),
               absl::StrCat("partition ", result.partition, " folded twice"));
  if (result.nonfinite.has_value() && !nonfinite_.has_value()) {
    nonfinite_ = result.nonfinite;
  }
  results_[p] = std::move(result);
  --missing_;
}

SharedSnapshot Transaction::Next(StatisticsSets statistics) const {
  COHORT_CHECK(complete() && !nonfinite_.has_value(), "not ready to commit");
  auto next = std::make_shared<ModelSnapshot>(
      *Successor(*plan_.base, std::move(statistics)));
  for (size_t p = 0; p < results_.size(); ++p) {
    const std::optional<FoldResult>& result = results_[p];
    if (!result.has_value()) continue;
    next->weights[p] = result->weights;
    next->velocities[p] = result->velocity;
    next->checksums[p] = result->checksum;
  }
  return next;
}

SharedSnapshot Successor(const ModelSnapshot& base, StatisticsSets statistics) {
  auto next = std::make_shared<ModelSnapshot>(base);
  next->version = base.version.Next();
  next->statistics =
      std::make_shared<const StatisticsSets>(std::move(statistics));
  return next;
}

}  // namespace cohort
