#include "server/core/ledger/run_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {

RunSettings::RunSettings(const CoordinatorOptions& options,
                         const RunState* restored)
    : options_(options), policy_(Resolve(options.policy)) {
  if (restored == nullptr) {
    history_ = {{.policy_epoch = policy_epoch_,
                 .changed = SettingsOf(options_),
                 .text = PolicyText(policy_),
                 .by_flags = true}};
    return;
  }
  // Those of the present version may not be in the checkpoint.
  const Version version = restored->snapshot->version;
  while (planned_next_ < options_.planned.size() &&
         options_.planned[planned_next_].version < version) {
    ++planned_next_;
  }
  policy_epoch_ = restored->policy_epoch;
  history_ = restored->policy_history;
  // A setting that the checkpoint does not have is not a change.
  CoordinatorOptions before = options_;
  for (const auto& [name, value] : restored->settings) {
    SetSetting(name, value, before).IgnoreError();
  }
  const SettingValues changed = Difference(before, options_);
  if (changed.empty()) return;
  ++policy_epoch_;
  history_.push_back({.policy_epoch = policy_epoch_,
                      .version = restored->snapshot->version,
                      .samples = restored->samples,
                      .changed = changed,
                      .text = absl::StrCat("continued with changed flags: ",
                                           ChangeText(before, options_), ": ",
                                           PolicyText(policy_)),
                      .by_flags = true});
}

bool RunSettings::HadRank(Rank rank) const {
  return rank.value() >= 0 &&
         std::any_of(
             history_.begin(), history_.end(),
             [rank](const PolicyRecord& record) {
               const auto workers = record.changed.find("workers");
               CoordinatorOptions then;
               return workers != record.changed.end() &&
                      SetSetting("workers", workers->second, then).ok() &&
                      rank.value() < then.workers;
             });
}

RunSettings::Outlook RunSettings::OutlookOn(
    const SettingValues& values, const CoordinatorOptions& target) const {
  const SettingValues changed = Difference(options_, target);
  Outlook outlook{
      .changes = !changed.empty(),
      .at_version = std::any_of(changed.begin(), changed.end(),
                                [&values](const auto& change) {
                                  return values.contains(change.first) &&
                                         !ActsAtOnce(change.first);
                                }),
      .text = changed.empty() ? "the settings are already in force"
                              : ChangeText(options_, target)};
  // The value that a setting on auto takes is part of the change.
  if (Resolve(target.policy) != policy_) {
    absl::StrAppend(&outlook.text, ": ", PolicyText(target.policy));
  }
  if (!pending_.has_value()) return outlook;
  for (const auto& [name, value] : pending_changes()) {
    if (SettingText(name, target) == value) continue;
    absl::StrAppend(&outlook.text, "; replaces the pending ", name, "=", value);
  }
  return outlook;
}

SettingValues RunSettings::pending_changes() const {
  if (!pending_.has_value()) return {};
  return Difference(options_, pending_->target);
}

AwaitedChange RunSettings::Awaited(const SettingValues& values) const {
  const auto among = [&values](SettingValues changed) {
    std::erase_if(changed, [&values](const auto& change) {
      return !values.contains(change.first);
    });
    return changed;
  };
  AwaitedChange awaited{.policy_epoch = policy_epoch_ + 1,
                        .values = among(pending_changes())};
  // What acted at once may have let an earlier request take effect.
  for (auto record = history_.rbegin();
       awaited.values.empty() && record != history_.rend(); ++record) {
    awaited = {record->policy_epoch, among(record->changed)};
  }
  return awaited;
}

namespace {

// Numbers that have another meaning from now on must be named.
absl::Status CheckNamesRates(const SettingValues& values, bool local) {
  for (const absl::string_view name : {"learning_rate", "weight_decay"}) {
    // That of an outer optimizer is 0.
    if (local && name == "weight_decay") continue;
    if (values.contains(std::string(name))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--local_steps: got ", local ? "more than 0" : "0", " without --", name,
        ", which is the outer optimizer's with local steps, and that of "
        "gradients without: want both in one change"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CoordinatorOptions> RunSettings::TargetOf(
    const SettingValues& values) const {
  CoordinatorOptions target =
      pending_.has_value() ? pending_->target : options_;
  for (const auto& [name, value] : values) {
    COHORT_RETURN_IF_ERROR(SetSetting(name, value, target));
    target.given.insert(name);
  }
  TakeImplied(target);
  const bool local = target.policy.local_steps > 0;
  if (local != (options_.policy.local_steps > 0)) {
    if (local) TakeOuterDefaults(target);
    COHORT_RETURN_IF_ERROR(CheckNamesRates(values, local));
  }
  // A change to an elastic size takes `continue` along, as the flags do.
  if (values.contains("workers") && !values.contains("on_worker_loss") &&
      target.elastic()) {
    target.on_worker_loss = OnWorkerLoss::kContinue;
  }
  return target;
}

void RunSettings::AdoptAtOnce(const CoordinatorOptions& target) {
  CoordinatorOptions next = options_;
  CopySettings(target, /*at_once=*/true, next);
  if (target.workers != options_.workers ||
      target.workers_min != options_.workers_min) {
    next.on_worker_loss = options_.on_worker_loss;
  }
  options_ = std::move(next);
}

void RunSettings::Request(CoordinatorOptions target, const ChangeNote& note) {
  pending_.reset();
  if (Difference(options_, target).empty()) return;
  pending_ = {.target = std::move(target), .note = note};
}

void RunSettings::AdoptOptimizer(const CoordinatorOptions& target) {
  const auto adopt = [&target](CoordinatorOptions& options) {
    options.optimizer = target.optimizer;
    options.policy.local_steps = target.policy.local_steps;
  };
  adopt(options_);
  policy_ = Resolve(options_.policy);
  if (pending_.has_value()) adopt(pending_->target);
}

void RunSettings::AdoptPending() {
  CopySettings(pending_->target, /*at_once=*/false, options_);
  options_.on_worker_loss = pending_->target.on_worker_loss;
  options_.given = std::move(pending_->target.given);
  policy_ = Resolve(options_.policy);
  pending_.reset();
}

const PlannedChange* RunSettings::TakePlanned(Version version) {
  if (planned_next_ == options_.planned.size()) return nullptr;
  const PlannedChange& next = options_.planned[planned_next_];
  if (version < next.version) return nullptr;
  ++planned_next_;
  return &next;
}

const PolicyRecord& RunSettings::Record(SettingValues changed, std::string text,
                                        const ChangeNote& note, Version version,
                                        int64_t samples) {
  ++policy_epoch_;
  history_.push_back({.policy_epoch = policy_epoch_,
                      .version = version,
                      .samples = samples,
                      .changed = std::move(changed),
                      .text = std::move(text),
                      .note = note});
  return history_.back();
}

}  // namespace cohort
