#include "server/partitions/partitions.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/optimizer/slots.h"

namespace cohort {
namespace {

absl::Status CheckBuffers(const std::vector<Partition>& partitions,
                          const ShardPlace& place,
                          const ModelSnapshot& snapshot) {
  if (snapshot.weights.size() != partitions.size() ||
      snapshot.slots.size() != partitions.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("install: got ", snapshot.weights.size(),
                     " partitions, want ", partitions.size()));
  }
  for (size_t p = 0; p < partitions.size(); ++p) {
    const bool owned = place.Owns(static_cast<int32_t>(p));
    const auto fits = [&](const SharedFloats& floats) {
      return floats == nullptr ||
             (owned && floats->size() == partitions[p].elements);
    };
    bool good =
        fits(snapshot.weights[p]) && (snapshot.weights[p] != nullptr) == owned;
    for (const SlotKind& kind : AllSlots()) {
      good = good && fits(snapshot.slots[p].*kind.buffer);
    }
    if (good) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("install: partition ", p, ": want weights and slots of ",
                     owned ? absl::StrCat(partitions[p].elements, " elements")
                           : "other shards to be absent"));
  }
  return absl::OkStatus();
}

}  // namespace

Installation InstallationOf(const ShardPlace& place, const SharedModel& model,
                            const SharedSnapshot& whole,
                            const CoordinatorOptions& settings) {
  SharedSnapshot part = PartOf(whole, place);
  if (part->slots.empty()) {
    auto fitted = std::make_shared<ModelSnapshot>(*part);
    fitted->slots.resize(part->weights.size());
    part = std::move(fitted);
  }
  return {.place = place,
          .model = model,
          .snapshot = std::move(part),
          .settings = settings};
}

absl::StatusOr<Partitions> Partitions::Install(const Installation& install) {
  Partitions node;
  node.place_ = install.place;
  node.model_ = install.model;
  COHORT_RETURN_IF_ERROR(CheckBuffers(install.model->partitions, install.place,
                                      *install.snapshot));
  node.options_ = install.settings;
  node.data_ = FoldStage(install.place);
  // First, because Fit starts from the committed version.
  node.Publish(install.snapshot, {});
  COHORT_RETURN_IF_ERROR(node.Fit());
  return node;
}

absl::Status Partitions::Fit() {
  COHORT_ASSIGN_OR_RETURN(
      mask_, MaskFor(options_.optimizer, model_->layout, model_->partitions));
  auto fitted = std::make_shared<ModelSnapshot>(*current_);
  // From the slots as they were committed, so that two changes between steps
  // give what the second alone would.
  const SharedSnapshot committed = Read(current_->version);
  fitted->slots =
      FitSlots(model_->partitions, committed->weights, committed->slots,
               SlotsOf(options_.optimizer, Resolve(options_.policy)));
  current_ = std::move(fitted);
  return absl::OkStatus();
}

absl::StatusOr<Partitions::Consequences> Partitions::Carry(
    const command::Adopt& adopt) {
  COHORT_RETURN_IF_ERROR(SetSettings(adopt.changed, options_));
  COHORT_RETURN_IF_ERROR(Fit());
  return Consequences();
}

absl::StatusOr<std::vector<FoldJob>> Partitions::Hold(HeldGradient gradient) {
  const int32_t p = gradient.partition;
  if (p < 0 || static_cast<size_t>(p) >= model_->partitions.size() ||
      !place_.Owns(p) || data_.Holds(gradient.push, p)) {
    return absl::FailedPreconditionError(
        absl::StrCat("gradient of rank ", gradient.push.rank.value(),
                     ", partition ", p, ": another shard's, or held already"));
  }
  return data_.Hold(std::move(gradient));
}

bool Partitions::MayBegin(const CommitPlan& plan) const {
  if (plan.base != current_->version || plan.contributors.empty()) return false;
  const Transaction* open = data_.transaction();
  if (plan.update == 0) return open == nullptr;
  return open != nullptr && open->prepared() && open->plan().continues &&
         open->plan().update + 1 == plan.update;
}

absl::StatusOr<Partitions::Consequences> Partitions::Carry(
    const command::Prepare& prepare) {
  const CommitPlan& plan = prepare.plan;
  if (!MayBegin(plan)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "transaction ", plan.transaction, ": got update ", plan.update,
        " of base version ", plan.base.value(), " and ",
        plan.contributors.size(), " pushes, want version ",
        current_->version.value(),
        ", at least one push, and no other transaction in progress than that "
        "of the update before, prepared"));
  }
  const int32_t groups = RateGroups(model_->layout);
  if (!plan.group_rates.empty() &&
      plan.group_rates.size() != static_cast<size_t>(groups)) {
    return absl::InvalidArgumentError(
        absl::StrCat("transaction ", plan.transaction, ": got ",
                     plan.group_rates.size(), " rates, want ", groups));
  }
  COHORT_RETURN_IF_ERROR(
      CheckGroupNumbers(plan.numbers, options_.optimizer, groups));
  PlanContext context{.model = model_,
                      .base = current_,
                      .optimizer = options_.optimizer,
                      .mask = mask_};
  if (plan.update > 0) context.base = data_.transaction()->Draft();
  if (plan.read.has_value()) {
    context.read = Read(*plan.read);
    if (context.read == nullptr) {
      return absl::OutOfRangeError(absl::StrCat(
          "transaction ", plan.transaction, ": version ", plan.read->value(),
          ", which its push has read, is not held"));
    }
  }
  Consequences to;
  if (plan.update > 0) to.over = data_.Commit(data_.transaction()->id());
  to.folds = data_.Prepare(plan, std::move(context));
  return to;
}

absl::StatusOr<Partitions::Consequences> Partitions::Carry(
    const command::Scale& scale) {
  const Transaction* begun = data_.transaction();
  // It was aborted while the command was on its way.
  if (begun == nullptr || begun->id() != scale.transaction) {
    return Consequences();
  }
  if (!begun->AwaitsScales()) {
    return absl::FailedPreconditionError(
        absl::StrCat("transaction ", scale.transaction,
                     " is to be scaled, and no pass is over here that gives "
                     "norms"));
  }
  const size_t parameters = model_->layout.parameters.size();
  const size_t ratios = scale.scales.trust_ratios.size();
  if (ratios != 0 && ratios != parameters) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scale: got ", ratios, " trust ratios, want ", parameters, " or none"));
  }
  return Consequences{.folds = data_.Scale(scale.scales)};
}

absl::Status Partitions::CheckFollows(Version version) const {
  if (version == current_->version.Next()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("commit: got version ", version.value(), ", want ",
                   current_->version.Next().value()));
}

absl::StatusOr<Partitions::Consequences> Partitions::Carry(
    const command::Commit& commit) {
  const Transaction* over = data_.transaction();
  if (over == nullptr || over->id() != commit.transaction ||
      !over->prepared()) {
    return absl::FailedPreconditionError(
        absl::StrCat("transaction ", commit.transaction,
                     " is to be committed and is not prepared here"));
  }
  COHORT_RETURN_IF_ERROR(CheckFollows(commit.version));
  // Before the transaction, which `over` points to, is handed out.
  Publish(over->Next(), commit.held);
  return Consequences{.over = data_.Commit(commit.transaction)};
}

absl::StatusOr<Partitions::Consequences> Partitions::Carry(
    const command::Abort& abort) {
  if (abort.skipped.has_value()) {
    COHORT_RETURN_IF_ERROR(CheckFollows(*abort.skipped));
    auto next = std::make_shared<ModelSnapshot>(*current_);
    next->version = *abort.skipped;
    Publish(std::move(next), abort.held);
  }
  return Consequences{.over = data_.Abort(abort.transaction)};
}

void Partitions::Publish(SharedSnapshot next,
                         const std::vector<Version>& held) {
  current_ = std::move(next);
  std::erase_if(held_, [&held](const auto& one) {
    return !std::binary_search(held.begin(), held.end(), one.first);
  });
  held_[current_->version] = current_;
}

bool Partitions::MayCome(Version version) const {
  if (version <= newest()) return false;
  if (version == newest().Next()) return true;
  // A commit needs the folds of every shard, so shard 0 is one version ahead at
  // most, unless this shard folds nothing.
  for (size_t p = 0; p < model_->partitions.size(); ++p) {
    if (model_->partitions[p].trainable &&
        place_.Owns(static_cast<int32_t>(p))) {
      return false;
    }
  }
  return true;
}

SharedSnapshot Partitions::Read(Version version) const {
  const auto at = held_.find(version);
  return at == held_.end() ? nullptr : at->second;
}

absl::StatusOr<Partitions::Consequences> Partitions::Carry(
    const command::SendWeights& send) const {
  const int32_t p = send.partition;
  if (p >= 0 && static_cast<size_t>(p) < model_->partitions.size() &&
      place_.Owns(p)) {
    const Transaction* pending = data_.transaction();
    if (pending != nullptr && send.version == current_->version.Next() &&
        pending->result(p).has_value() &&
        pending->result(p)->weights != nullptr) {
      const FoldResult& result = *pending->result(p);
      // Tentative: the worker uses them only if the verdict names their
      // version. The change goes with the transaction; a later request gets the
      // whole weights.
      PartitionWeights weights{.weights = result.weights};
      if (send.takes_change) {
        weights.change = result.change;
        weights.change_checksum = result.change_checksum;
      }
      return Consequences{.weights = std::move(weights)};
    }
    const SharedSnapshot snapshot = Read(send.version);
    if (snapshot != nullptr) {
      const auto at = static_cast<size_t>(p);
      return Consequences{
          .weights = PartitionWeights{.weights = snapshot->weights[at]}};
    }
  }
  return absl::OutOfRangeError(absl::StrCat("weights of partition ", p,
                                            ", version ", send.version.value(),
                                            ": not here"));
}

}  // namespace cohort
