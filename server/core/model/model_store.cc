#include "server/core/model/model_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/status_macros.h"
#include "server/core/optimizer/mask.h"

namespace cohort {
namespace {

int32_t CountTrainable(const std::vector<Partition>& partitions) {
  return static_cast<int32_t>(
      std::count_if(partitions.begin(), partitions.end(),
                    [](const Partition& p) { return p.trainable; }));
}

}  // namespace

double LossReference(const RunPlan& plan) {
  return std::exp2(std::ceil(std::log2(plan.loss_reference)));
}

absl::Status ModelStore::CheckRegistered() const {
  if (registered()) return absl::OkStatus();
  return absl::FailedPreconditionError("no model is registered yet");
}

bool ModelStore::TracksStatistics() const {
  return std::any_of(batch_norms().begin(), batch_norms().end(),
                     [](const auto& layer) { return layer.track_statistics; });
}

absl::Status ModelStore::Install(const ModelLayout& layout, const RunPlan& plan,
                                 std::vector<LayerStatistics> statistics,
                                 const CoordinatorOptions& options,
                                 const PolicyOptions& policy) {
  auto model = std::make_shared<RegisteredModel>();
  model->layout = layout;
  model->plan = plan;
  model->plan.loss_reference = LossReference(plan);
  model->partitions = MakePartitions(layout, options.partition_bytes);
  // What can fail comes before anything changes.
  COHORT_RETURN_IF_ERROR(
      MaskFor(options.optimizer, layout, model->partitions).status());
  if (statistics.empty()) statistics = InitialStatistics(layout);
  ModelVersion first{
      .statistics = std::make_shared<const StatisticsSets>(
          StartSets(KindsKept(policy, options.optimizer), statistics))};
  statistics_ = std::make_shared<const KeptStatistics>(
      policy, options.optimizer.ema_decay, layout.batch_norms);
  Restore(std::move(model), first);
  AdoptOptimizer(options, policy);
  return absl::OkStatus();
}

void ModelStore::Restore(SharedModel model, const ModelVersion& version) {
  model_ = std::move(model);
  trainable_partitions_ = CountTrainable(model_->partitions);
  Publish(std::make_shared<ModelVersion>(version));
}

void ModelStore::Publish(SharedVersion next) {
  current_ = std::move(next);
  published_.push_back(current_);
}

std::vector<Version> ModelStore::HeldVersions() {
  std::erase_if(published_, [](const auto& one) { return one.expired(); });
  std::vector<Version> versions;
  for (const auto& one : published_) {
    const SharedVersion version = one.lock();
    if (version != nullptr) versions.push_back(version->version);
  }
  std::sort(versions.begin(), versions.end());
  // A version whose statistics were exchanged has two objects.
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

void ModelStore::AdoptOptimizer(const CoordinatorOptions& options,
                                const PolicyOptions& policy) {
  if (!registered()) return;
  slots_.clear();
  if (trainable_partitions_ > 0) slots_ = SlotsOf(options.optimizer, policy);
}

std::string ModelStore::AdoptStatistics(const OptimizerOptions& optimizer,
                                        const PolicyOptions& policy) {
  if (!registered()) return "";
  const StatisticsSets& held = *current_->statistics;
  const std::vector<StatisticsKind> kinds = KindsKept(policy, optimizer);
  const std::vector<StatisticsKind> anew = NotHeld(held, kinds);
  std::string text;
  if (!anew.empty()) {
    text = absl::StrCat("; the statistics ", StatisticsNames(anew),
                        " start from those of ",
                        StatisticsName(held.front().kind));
  }
  statistics_ = std::make_shared<const KeptStatistics>(
      policy, optimizer.ema_decay, batch_norms());
  Publish(WithSets(*current_, CarryOver(held, kinds)));
  return text;
}

CommitPlan ModelStore::Complete(CommitPlan plan) {
  plan.transaction = next_transaction_++;
  plan.base = version();
  return plan;
}

void ModelStore::HoldFrom(Version oldest) {
  read_[current_->version] = current_;
  read_.erase(read_.begin(), read_.lower_bound(oldest));
}

}  // namespace cohort
