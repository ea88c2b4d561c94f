#include "server/partitions/transaction.h"

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/core/optimizer/gradient_scales.h"
#include "server/core/statistics/statistics_sets.h"

namespace cohort {

namespace {

kernels::AdamStep AdamStepOf(const OptimizerOptions& o, double learning_rate,
                             double weight_decay, double weight,
                             int64_t update) {
  const auto t = static_cast<double>(update);
  const bool decoupled = o.kind == OptimizerKind::kAdamW;
  return {.gradient_scale = static_cast<float>(weight),
          .rate = static_cast<float>(learning_rate /
                                     (1 - std::pow(o.adam_beta1, t))),
          .weight_decay = decoupled ? 0.0f : static_cast<float>(weight_decay),
          .weight_keep =
              decoupled ? static_cast<float>(1 - learning_rate * weight_decay)
                        : 1.0f,
          .first_decay = static_cast<float>(o.adam_beta1),
          .first_gain = static_cast<float>(1 - o.adam_beta1),
          .second_decay = static_cast<float>(o.adam_beta2),
          .second_gain = static_cast<float>(1 - o.adam_beta2),
          .second_correction =
              static_cast<float>(std::sqrt(1 - std::pow(o.adam_beta2, t))),
          .epsilon = static_cast<float>(o.adam_epsilon)};
}

}  // namespace

Transaction::Transaction(CommitPlan plan, PlanContext context,
                         const ShardPlace& place)
    : plan_(std::move(plan)), context_(std::move(context)), place_(place) {
  const std::vector<Partition>& partitions = model().partitions;
  COHORT_CHECK(context_.base->slots.size() == partitions.size(),
               absl::StrCat("got slots of ", context_.base->slots.size(),
                            " partitions, want ", partitions.size()));
  if (plan_.loss_weight > 0) {
    gradient_scale_ = model().plan.loss_reference / plan_.loss_weight;
  }
  results_.resize(partitions.size());
  for (size_t p = 0; p < partitions.size(); ++p) {
    const bool folds =
        partitions[p].trainable && place_.Owns(static_cast<int32_t>(p));
    started_.push_back(!folds);
    if (folds) ++missing_;
  }
  if (!two_passes()) return;
  pending_.resize(partitions.size());
  missing_first_ = missing_;
}

bool Transaction::two_passes() const { return NeedsNorms(optimizer()); }

SliceStep Transaction::StepOf(int32_t partition, size_t slice,
                              bool absent) const {
  const auto p = static_cast<size_t>(partition);
  const OptimizerOptions& o = optimizer();
  const Slice& shape = model().partitions[p].slices[slice];
  const ParameterSpec& parameter =
      model().layout.parameters[static_cast<size_t>(shape.parameter)];
  const bool frozen =
      context_.mask != nullptr && context_.mask->partitions[p].whole[slice];
  const double rate =
      parameter.rate_multiplier *
      (plan_.group_rates.empty()
           ? plan_.learning_rate
           : plan_.group_rates[static_cast<size_t>(parameter.rate_group)]);
  const double decay = DecayOf(o, parameter);
  SliceStep step{
      .count = shape.count,
      .step = {.gradient_scale = static_cast<float>(plan_.weight),
               .learning_rate = static_cast<float>(rate),
               .weight_decay = static_cast<float>(decay),
               .momentum =
                   o.uses_momentum() ? static_cast<float>(o.momentum) : 0.0f,
               .nesterov = o.kind == OptimizerKind::kNesterov},
      .skip = absent || frozen || plan_.loss_weight == 0};
  if (o.uses_adam()) {
    step.adam = AdamStepOf(o, rate, decay, plan_.weight,
                           context_.base->slots[p].updates[slice] + 1);
  }
  return step;
}

float Transaction::AverageGain() const {
  const double decay = optimizer().ema_decay;
  if (decay == 0 || plan_.loss_weight == 0) return 0;
  return static_cast<float>(1 - AverageDecay(decay, context_.base->version));
}

FoldJob Transaction::Fold(int32_t partition,
                          std::vector<HeldGradient> gradients) {
  const auto p = static_cast<size_t>(partition);
  COHORT_CHECK(!started_[p], absl::StrCat("partition ", partition));
  const Partition& shape = model().partitions[p];
  FoldJob job{.transaction = plan_.transaction,
              .partition = partition,
              .pass = two_passes() ? FoldPass::kGradient : FoldPass::kWhole,
              .gradient_scale = static_cast<float>(gradient_scale_),
              .weights = context_.base->weights[p],
              .slots = context_.base->slots[p],
              .average_gain = AverageGain(),
              .frozen = context_.mask == nullptr
                            ? nullptr
                            : context_.mask->partitions[p].runs,
              .weight_norms = optimizer().kind == OptimizerKind::kLars};
  if (context_.read != nullptr) {
    job.compensation = {.read_weights = context_.read->weights[p],
                        .lambda = plan_.compensation,
                        .adaptive = plan_.adaptive};
  }
  std::vector<size_t> absent(shape.slices.size(), 0);
  for (HeldGradient& held : gradients) {
    for (int32_t slice : held.absent_slices) {
      ++absent[static_cast<size_t>(slice)];
    }
    // The push has nothing of this partition.
    if (held.gradient.size_bytes() == 0) continue;
    job.contributions.push_back({.rank = held.push.rank,
                                 .gradient = std::move(held.gradient),
                                 .type = held.type});
  }
  for (size_t i = 0; i < shape.slices.size(); ++i) {
    job.slices.push_back(StepOf(partition, i, absent[i] == gradients.size()));
  }
  if (two_passes()) {
    FoldJob& second = pending_[p];
    second = job;
    second.pass = FoldPass::kUpdate;
    second.contributions.clear();
    second.compensation = {};
  }
  started_[p] = true;
  return job;
}

void Transaction::Done(FoldResult result) {
  const auto p = static_cast<size_t>(result.partition);
  COHORT_CHECK(started_[p] && !results_[p].has_value(),
               absl::StrCat("partition ", result.partition, " folded twice"));
  finite_ = finite_ && !result.nonfinite.has_value();
  if (result.pass != FoldPass::kGradient) {
    results_[p] = std::move(result);
    --missing_;
    return;
  }
  pending_[p].gradient = std::move(result.gradient);
  pending_[p].slots.mean_square = std::move(result.slots.mean_square);
  --missing_first_;
}

bool Transaction::AwaitsScales() const {
  return two_passes() && missing_first_ == 0 && !pending_.empty() && finite_;
}

SharedSnapshot Transaction::Next() const {
  auto next = std::make_shared<ModelSnapshot>(*context_.base);
  next->version = context_.base->version.Next();
  for (size_t p = 0; p < results_.size(); ++p) {
    if (!results_[p].has_value()) continue;
    next->weights[p] = results_[p]->weights;
    next->slots[p] = results_[p]->slots;
  }
  return next;
}

std::vector<FoldJob> Transaction::Scale(const GradientScales& scales) {
  COHORT_CHECK(AwaitsScales(), absl::StrCat("transaction ", id()));
  const std::vector<double>& ratios = scales.trust_ratios;
  std::vector<FoldJob> jobs;
  for (size_t p = 0; p < pending_.size(); ++p) {
    if (!model().partitions[p].trainable ||
        !place_.Owns(static_cast<int32_t>(p))) {
      continue;
    }
    FoldJob job = std::move(pending_[p]);
    for (size_t i = 0; i < job.slices.size(); ++i) {
      const Slice& slice = model().partitions[p].slices[i];
      const double ratio =
          ratios.empty() ? 1 : ratios[static_cast<size_t>(slice.parameter)];
      kernels::SgdStep& sgd = job.slices[i].step;
      sgd.gradient_scale =
          static_cast<float>(plan_.weight * scales.clip * ratio);
      sgd.weight_decay = static_cast<float>(sgd.weight_decay * ratio);
      if (job.slices[i].adam.has_value()) {
        job.slices[i].adam->gradient_scale =
            static_cast<float>(plan_.weight * scales.clip);
      }
    }
    jobs.push_back(std::move(job));
  }
  pending_.clear();
  return jobs;
}

}  // namespace cohort
