#include "server/partitions/transaction.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/optimizer_rules.h"
#include "server/core/optimizer/gradient_scales.h"
#include "server/core/statistics/statistics_sets.h"

namespace cohort {

Transaction::Transaction(CommitPlan plan, PlanContext context,
                         const ShardPlace& place)
    : plan_(std::move(plan)),
      context_(std::move(context)),
      groups_(context_.optimizer, plan_.numbers),
      place_(place) {
  const std::vector<Partition>& partitions = model().partitions;
  COHORT_CHECK(context_.base->slots.size() == partitions.size(),
               absl::StrCat("got slots of ", context_.base->slots.size(),
                            " partitions, want ", partitions.size()));
  // Pushes without weight (all labels ignored) leave weights and slots alone:
  // decay and momentum by themselves would move them. Fold skips every slice.
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
  if (!several_passes()) return;
  pending_.resize(partitions.size());
  missing_norms_ = missing_;
  if (MeasuresUpdates(optimizer().kind)) next_pass_ = FoldPass::kNorms;
}

bool Transaction::several_passes() const { return NeedsNorms(optimizer()); }

void Transaction::SetStep(size_t slice, const GradientScales& scales,
                          FoldJob& job) const {
  const auto p = static_cast<size_t>(job.partition);
  const OptimizerOptions& o = optimizer();
  const auto k =
      static_cast<size_t>(model().partitions[p].slices[slice].parameter);
  const ParameterSpec& parameter = model().layout.parameters[k];
  const kernels::OptimizerRule& rule = kernels::RuleOf(o.kind);
  kernels::RuleInputs inputs{
      .numbers = groups_.NumbersOf(parameter),
      .rate =
          plan_.group_rates.empty()
              ? parameter.rate_multiplier * plan_.learning_rate
              : plan_.group_rates[static_cast<size_t>(parameter.rate_group)],
      .decay = groups_.DecayOf(parameter),
      .gradient_scale = plan_.weight * scales.clip,
      .update_only = job.pass == FoldPass::kNorms};
  if (!scales.trust_ratios.empty() && rule.adapts_update) {
    inputs.rate *= scales.trust_ratios[k];
  } else if (!scales.trust_ratios.empty()) {
    inputs.gradient_scale *= scales.trust_ratios[k];
    // The decay is rounded, as without a ratio, before it is multiplied.
    inputs.decay = static_cast<float>(inputs.decay) * scales.trust_ratios[k];
  }
  if (o.numbers.maximize) inputs.gradient_scale *= -1;
  if (rule.counts_updates) {
    inputs.update = context_.base->slots[p].updates[slice] + 1;
  }
  job.slices[slice].rule = rule.step(inputs);
}

float Transaction::AverageGain() const {
  const double decay = optimizer().ema_decay;
  // A step without weight leaves the weights as they are, and so the average,
  // which moves once a step.
  if (decay == 0 || plan_.loss_weight == 0 || plan_.continues) return 0;
  return static_cast<float>(1 - AverageDecay(decay, context_.base->version));
}

FoldJob Transaction::Fold(int32_t partition,
                          std::vector<HeldGradient> gradients) {
  const auto p = static_cast<size_t>(partition);
  COHORT_CHECK(!started_[p], absl::StrCat("partition ", partition));
  const Partition& shape = model().partitions[p];
  FoldJob job{.transaction = plan_.transaction,
              .partition = partition,
              .pass = several_passes() ? FoldPass::kGradient : FoldPass::kWhole,
              .gradient_scale = static_cast<float>(gradient_scale_),
              .weights = context_.base->weights[p],
              .slots = context_.base->slots[p],
              .average_gain = AverageGain(),
              .frozen = context_.mask == nullptr
                            ? nullptr
                            : context_.mask->partitions[p].runs,
              .weight_norms = AdaptsRates(optimizer().kind) &&
                              !MeasuresUpdates(optimizer().kind)};
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
    const bool frozen =
        context_.mask != nullptr && context_.mask->partitions[p].whole[i];
    job.slices.push_back({.count = shape.slices[i].count,
                          .skip = absent[i] == gradients.size() || frozen ||
                                  plan_.loss_weight == 0});
    if (!several_passes()) SetStep(i, {}, job);
  }
  if (several_passes()) {
    FoldJob& next = pending_[p];
    next = job;
    // Its gradient is the result of the first pass, which is compensated. So
    // the contributions' memory is free as soon as that has ended.
    next.contributions.clear();
    next.compensation = {};
  }
  started_[p] = true;
  return job;
}

void Transaction::Done(FoldResult result) {
  const auto p = static_cast<size_t>(result.partition);
  COHORT_CHECK(started_[p] && !results_[p].has_value(),
               absl::StrCat("partition ", result.partition, " folded twice"));
  finite_ = finite_ && !result.nonfinite.has_value();
  if (result.pass == FoldPass::kWhole || result.pass == FoldPass::kUpdate) {
    results_[p] = std::move(result);
    --missing_;
    return;
  }
  if (result.pass == FoldPass::kGradient) {
    pending_[p].gradient = std::move(result.gradient);
    // This pass moves it on, for the compensation.
    pending_[p].slots.mean_square = std::move(result.slots.mean_square);
  }
  --missing_norms_;
}

bool Transaction::AwaitsScales() const {
  return several_passes() && missing_norms_ == 0 && !pending_.empty() &&
         finite_;
}

SharedSnapshot Transaction::WithResults(Version version) const {
  auto next = std::make_shared<ModelSnapshot>(*context_.base);
  next->version = version;
  for (size_t p = 0; p < results_.size(); ++p) {
    if (!results_[p].has_value()) continue;
    next->weights[p] = results_[p]->weights;
    next->slots[p] = results_[p]->slots;
  }
  return next;
}

std::vector<FoldJob> Transaction::Scale(const GradientScales& scales) {
  COHORT_CHECK(AwaitsScales(), absl::StrCat("transaction ", id()));
  const bool last = next_pass_ == FoldPass::kUpdate;
  std::vector<FoldJob> jobs;
  for (size_t p = 0; p < pending_.size(); ++p) {
    const auto partition = static_cast<int32_t>(p);
    if (!model().partitions[p].trainable || !place_.Owns(partition)) continue;
    FoldJob job = last ? std::move(pending_[p]) : pending_[p];
    job.pass = next_pass_;
    for (size_t i = 0; i < job.slices.size(); ++i) SetStep(i, scales, job);
    jobs.push_back(std::move(job));
  }
  if (last) {
    // So that AwaitsScales holds once a pass.
    pending_.clear();
  } else {
    next_pass_ = FoldPass::kUpdate;
    missing_norms_ = missing_;
  }
  return jobs;
}

}  // namespace cohort
