#include "server/core/model/model_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/membership/registration_book.h"
#include "server/core/optimizer/slots.h"

namespace cohort {
namespace {

int32_t CountTrainable(const std::vector<Partition>& partitions) {
  return static_cast<int32_t>(
      std::count_if(partitions.begin(), partitions.end(),
                    [](const Partition& p) { return p.trainable; }));
}

}  // namespace

absl::Status ModelStore::CheckRegistered() const {
  if (registered()) return absl::OkStatus();
  return absl::FailedPreconditionError("no model is registered yet");
}

bool ModelStore::TracksStatistics() const {
  return std::any_of(batch_norms().begin(), batch_norms().end(),
                     [](const auto& layer) { return layer.track_statistics; });
}

absl::StatusOr<SharedSnapshot> ModelStore::Install(
    const ModelLayout& layout, const RunPlan& plan,
    std::vector<SharedFloats> values, std::vector<LayerStatistics> statistics,
    const CoordinatorOptions& options, const PolicyOptions& policy) {
  auto model = std::make_shared<RegisteredModel>();
  model->layout = layout;
  model->plan = plan;
  model->plan.loss_reference = LossReference(plan);
  model->partitions = MakePartitions(layout, options.partition_bytes);
  COHORT_CHECK(values.size() == model->partitions.size(),
               absl::StrCat("got ", values.size(), " partitions"));
  COHORT_ASSIGN_OR_RETURN(
      mask_, MaskFor(options.optimizer, layout, model->partitions));

  auto snapshot = std::make_shared<ModelSnapshot>();
  for (size_t i = 0; i < values.size(); ++i) {
    COHORT_CHECK(values[i]->size() == model->partitions[i].elements,
                 "partition size");
  }
  snapshot->weights = std::move(values);
  if (statistics.empty()) statistics = InitialStatistics(layout);
  snapshot->statistics = std::make_shared<const StatisticsSets>(
      StartSets(KindsKept(policy, options.optimizer), statistics));
  statistics_ = std::make_shared<const KeptStatistics>(
      policy, options.optimizer.ema_decay, layout.batch_norms);
  SharedSnapshot whole = snapshot;
  Restore(std::move(model), whole, options.shards);
  auto fitted = std::make_shared<ModelSnapshot>(*current_);
  fitted->slots = FitSlots(model_->partitions, current_->weights, {},
                           SlotsOf(options.optimizer, policy));
  Publish(std::move(fitted));
  return whole;
}

void ModelStore::Restore(SharedModel model, SharedSnapshot snapshot,
                         int32_t shards) {
  model_ = std::move(model);
  place_.count = shards;
  trainable_partitions_ = CountTrainable(model_->partitions);
  PublishVersion(PartOf(std::move(snapshot), place_));
}

void ModelStore::PublishVersion(SharedSnapshot next) {
  committed_slots_ = next->slots;
  Publish(std::move(next));
}

void ModelStore::Publish(SharedSnapshot next) {
  current_ = std::move(next);
  if (place_.count > 1) published_.push_back(current_);
}

std::vector<Version> ModelStore::HeldVersions() {
  std::erase_if(published_, [](const auto& one) { return one.expired(); });
  std::vector<Version> versions;
  for (const auto& one : published_) {
    const SharedSnapshot snapshot = one.lock();
    if (snapshot != nullptr) versions.push_back(snapshot->version);
  }
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

void ModelStore::AdoptOptimizer(const CoordinatorOptions& options,
                                const PolicyOptions& policy) {
  if (!registered()) return;
  absl::StatusOr<SharedMask> mask =
      MaskFor(options.optimizer, model_->layout, model_->partitions);
  COHORT_CHECK(mask.ok(), mask.status().ToString());
  mask_ = *std::move(mask);
  auto fitted = std::make_shared<ModelSnapshot>(*current_);
  fitted->slots =
      FitSlots(model_->partitions, current_->weights, committed_slots_,
               SlotsOf(options.optimizer, policy));
  Publish(std::move(fitted));
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
  PublishStatistics(CarryOver(held, kinds));
  return text;
}

void ModelStore::PublishStatistics(StatisticsSets sets) {
  Publish(WithSets(*current_, std::move(sets)));
}

CommitPlan ModelStore::Complete(CommitPlan plan) {
  plan.transaction = next_transaction_++;
  plan.model = model_;
  plan.base = current_;
  plan.mask = mask_;
  return plan;
}

void ModelStore::HoldFrom(Version oldest) {
  read_[current_->version] = current_;
  read_.erase(read_.begin(), read_.lower_bound(oldest));
}

SharedSnapshot ModelStore::Held(Version version) const {
  if (version == current_->version) return current_;
  const auto read = read_.find(version);
  COHORT_CHECK(read != read_.end(),
               absl::StrCat("version ", version.value(), " is not held"));
  return read->second;
}

}  // namespace cohort
