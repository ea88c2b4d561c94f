#include "tests/core/small_run.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "common/check.h"
#include "common/permutation.h"
#include "server/core/optimizer/mask.h"
#include "server/core/optimizer/slots.h"
#include "tests/core/float_values.h"
#include "tests/fakes/float_ropes.h"

namespace cohort {
namespace {

// 5000 elements: "big" is cut, with a rest that is shorter than a block.
constexpr int64_t kPartitionBytes = 20000;

// The elements of `values` that lie in `partition`, in its order.
std::vector<float> Gather(const Partition& partition,
                          const ParameterValues& values) {
  std::vector<float> elements;
  for (const Slice& slice : partition.slices) {
    const std::vector<float>& from =
        values[static_cast<size_t>(slice.parameter)];
    elements.insert(elements.end(), from.begin() + slice.offset,
                    from.begin() + slice.offset + slice.count);
  }
  return elements;
}

}  // namespace

ModelLayout SmallRunLayout() {
  return {
      .parameters = {{.name = "conv.weight", .shape = {4, 3, 3, 3}},
                     {.name = "bn.weight", .shape = {6}, .decay_exempt = true},
                     {.name = "bn.bias",
                      .shape = {6},
                      .decay_exempt = true,
                      .rate_multiplier = 1.5},
                     {.name = "head.weight", .shape = {3}, .trainable = false},
                     {.name = "big.weight", .shape = {70, 100}},
                     {.name = "fc.weight",
                      .shape = {10, 7},
                      .rate_multiplier = 0.5,
                      .decay_multiplier = 3},
                     {.name = "fc.bias", .shape = {10}, .decay_exempt = true}}};
}

ParameterValues RandomValues(const ModelLayout& layout, uint64_t seed,
                             double scale) {
  SplitMix64 random(seed);
  ParameterValues values;
  for (const ParameterSpec& parameter : layout.parameters) {
    values.push_back(DrawFloats(random, ElementCount(parameter), scale));
  }
  return values;
}

SmallRun::SmallRun(const OptimizerOptions& optimizer,
                   const kernels::Backend& backend, const PolicyOptions& policy)
    : backend_(backend), policy_(policy) {
  auto model = std::make_shared<RegisteredModel>();
  model->layout = SmallRunLayout();
  model->plan.loss_reference = kLossReference;
  model->partitions = MakePartitions(model->layout, kPartitionBytes);
  const ParameterValues initial = RandomValues(model->layout, 1, 1);
  auto snapshot = std::make_shared<ModelSnapshot>();
  for (const Partition& partition : model->partitions) {
    snapshot->weights.push_back(BufferOf(Gather(partition, initial)));
  }
  snapshot->statistics = std::make_shared<StatisticsSets>();
  model_ = std::move(model);
  snapshot_ = std::move(snapshot);
  Change(optimizer);
}

void SmallRun::Change(const OptimizerOptions& optimizer) {
  optimizer_ = optimizer;
  auto mask = MakeMask(optimizer.freeze, model_->layout, model_->partitions);
  COHORT_CHECK(mask.ok(), mask.status().ToString());
  mask_ = *std::move(mask);
  auto snapshot = std::make_shared<ModelSnapshot>(*snapshot_);
  snapshot->slots = FitSlots(model_->partitions, snapshot->weights,
                             snapshot->slots, SlotsOf(optimizer_, policy_));
  snapshot_ = std::move(snapshot);
}

std::optional<NonfiniteGradient> SmallRun::Apply(
    const std::vector<ParameterValues>& gradients, const Step& step) {
  CommitPlan plan{.transaction = 1,
                  .base = snapshot_->version,
                  .learning_rate = step.learning_rate,
                  .numbers = step.numbers,
                  .loss_weight = step.loss_weight,
                  .compensation = step.compensation,
                  .adaptive = step.adaptive,
                  .weight = step.weight};
  FoldStage data;
  for (size_t k = 0; k < gradients.size(); ++k) {
    plan.contributors.push_back({.rank = Rank(static_cast<int32_t>(k))});
    HoldAll(data, plan.contributors.back(), gradients[k], step.absent);
  }
  PendingCommit commit(plan, model_, optimizer_);
  for (size_t p = 0; p < model_->partitions.size(); ++p) {
    const auto partition = static_cast<int32_t>(p);
    if (!commit.HasBegun(partition)) commit.Begin(partition);
  }
  std::vector<FoldJob> jobs = data.Prepare(plan, {.model = model_,
                                                  .base = snapshot_,
                                                  .read = step.read,
                                                  .optimizer = optimizer_,
                                                  .mask = mask_});
  // The last job first: the result must not depend on which fold ends first.
  while (!jobs.empty()) {
    FoldResult result = RunFold(jobs.back(), backend_, pool_);
    jobs.pop_back();
    EXPECT_TRUE(commit.Take(data.FoldDone(std::move(result))));
    std::optional<GradientScales> scales = commit.TakeScales();
    if (scales.has_value()) jobs = data.Scale(*scales);
  }
  EXPECT_TRUE(commit.complete());
  gradient_norm_ = commit.gradient_norm();
  if (!commit.nonfinite().has_value()) snapshot_ = data.transaction()->Next();
  return commit.nonfinite();
}

void SmallRun::HoldAll(FoldStage& data, const PushId& push,
                       const ParameterValues& gradients,
                       const std::vector<int32_t>& absent) const {
  for (size_t p = 0; p < model_->partitions.size(); ++p) {
    const Partition& partition = model_->partitions[p];
    if (!partition.trainable) continue;
    HeldGradient held{.push = push,
                      .partition = static_cast<int32_t>(p),
                      .gradient = RopeOver(Gather(partition, gradients))};
    for (size_t i = 0; i < partition.slices.size(); ++i) {
      for (int32_t parameter : absent) {
        if (partition.slices[i].parameter != parameter) continue;
        held.absent_slices.push_back(static_cast<int32_t>(i));
      }
    }
    data.Hold(std::move(held));
  }
}

ParameterValues SmallRun::Values(
    const std::vector<SharedFloats>& buffers) const {
  ParameterValues values(layout().parameters.size());
  for (size_t p = 0; p < buffers.size(); ++p) {
    if (buffers[p] == nullptr) continue;
    const float* from = buffers[p]->data();
    for (const Slice& slice : model_->partitions[p].slices) {
      std::vector<float>& to = values[static_cast<size_t>(slice.parameter)];
      to.insert(to.end(), from, from + slice.count);
      from += slice.count;
    }
  }
  return values;
}

ParameterValues SmallRun::weights() const { return Values(snapshot_->weights); }

ParameterValues SmallRun::slot(SharedFloats Slots::*buffer) const {
  std::vector<SharedFloats> buffers;
  for (const Slots& slots : snapshot_->slots) buffers.push_back(slots.*buffer);
  return Values(buffers);
}

}  // namespace cohort
