#include "server/core/settings/settings.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flags/flag_table.h"
#include "common/status_macros.h"
#include "server/core/settings/setting_kinds.h"

namespace cohort {
namespace {

using setting_kinds::Choice;
using setting_kinds::Choices;
using setting_kinds::CohortSize;
using setting_kinds::GlobalBatch;
using setting_kinds::List;
using setting_kinds::Names;
using setting_kinds::Number;
using setting_kinds::OptionalNumber;
using setting_kinds::Setting;

std::vector<Setting> PolicySettings() {
  return {
      Choice<AggregationKind>(
          "aggregation",
          {{"sync", AggregationKind::kSync},
           {"bounded", AggregationKind::kBounded},
           {"async", AggregationKind::kAsync}},
          [](auto& o) -> auto& { return o.policy.aggregation; }),
      Number(
          "min_pushes", [](auto& o) -> auto& { return o.policy.pushes_min; }),
      GlobalBatch("global_batch"),
      Number(
          "max_lead", [](auto& o) -> auto& { return o.policy.lead_max; }),
      Choice<StalenessRule>(
          "staleness",
          {{"keep", StalenessRule::kKeep},
           {"drop", StalenessRule::kDrop},
           {"scale", StalenessRule::kScale},
           {"compensate", StalenessRule::kCompensate}},
          [](auto& o) -> auto& { return o.policy.staleness.rule; }),
      Number(
          "max_staleness",
          [](auto& o) -> auto& { return o.policy.staleness.versions_max; }),
      OptionalNumber(
          "staleness_free",
          [](auto& o) -> auto& { return o.policy.staleness.versions_free; }),
      Number(
          "compensation",
          [](auto& o) -> auto& { return o.policy.staleness.compensation; }),
      Number(
          "compensation_adaptive", [](auto& o) -> auto& {
            return o.policy.staleness.compensation_adaptive;
          }),
      Choice<NormalizationKind>(
          "normalization",
          {{"auto", NormalizationKind::kAuto},
           {"global", NormalizationKind::kGlobal},
           {"local", NormalizationKind::kLocal}},
          [](auto& o) -> auto& { return o.policy.normalization; }),
      Number(
          "normalization_group",
          [](auto& o) -> auto& { return o.policy.normalization_group; }),
      Choices<StatisticsKind>(
          "bn_statistics",
          {{"sync", StatisticsKind::kSync},
           {"async", StatisticsKind::kAsync},
           {"chief", StatisticsKind::kChief},
           {"after", StatisticsKind::kAfter},
           {"batch", StatisticsKind::kBatch}},
          [](auto& o) -> auto& { return o.policy.statistics; }),
      Number(
          "bn_mixture_variance",
          [](auto& o) -> auto& { return o.policy.mixture_variance; }),
      Number(
          "precise_batches",
          [](auto& o) -> auto& { return o.policy.precise_batches; }),
      Choice<ElementType>(
          "wire",
          {{"float32", ElementType::kFloat32},
           {"bf16", ElementType::kBFloat16}},
          [](auto& o) -> auto& { return o.policy.wire; })};
}

Names<OptimizerKind> OptimizerKinds() {
  Names<OptimizerKind> kinds;
  for (const absl::string_view name : OptimizerNames()) {
    kinds.emplace_back(name, static_cast<OptimizerKind>(kinds.size()));
  }
  return kinds;
}

std::vector<Setting> OptimizerSettings() {
  return {
      Choice<OptimizerKind>(
          "optimizer", OptimizerKinds(),
          [](auto& o) -> auto& { return o.optimizer.kind; }),
      Number(
          "learning_rate",
          [](auto& o) -> auto& { return o.optimizer.learning_rate; }),
#define COHORT_OPTIMIZER_NUMBER(type, name, default_value, limits, help) \
  Number(                                                                \
      #name, [](auto& o) -> auto& { return o.optimizer.numbers.name; }),
#include "common/optimizers.inc"
      Number(
          "weight_decay",
          [](auto& o) -> auto& { return o.optimizer.weight_decay; }),
      Number(
          "decay_everything",
          [](auto& o) -> auto& { return o.optimizer.decay_everything; }),
      List(
          "no_decay", ',',
          [](auto& o) -> auto& { return o.optimizer.no_decay; }),
      Number(
          "clip_norm", [](auto& o) -> auto& { return o.optimizer.clip_norm; }),
      Number(
          "ema_decay", [](auto& o) -> auto& { return o.optimizer.ema_decay; }),
      List(
          "freeze", ';', [](auto& o) -> auto& { return o.optimizer.freeze; })};
}

std::vector<Setting> ScheduleSettings() {
  return {Choice<ScheduleKind>(
              "schedule",
              {{"constant", ScheduleKind::kConstant},
               {"step", ScheduleKind::kStep},
               {"cosine", ScheduleKind::kCosine},
               {"polynomial", ScheduleKind::kPolynomial}},
              [](auto& o) -> auto& { return o.optimizer.schedule; }),
          List(
              "step_epochs", ',',
              [](auto& o) -> auto& { return o.optimizer.step_epochs; }),
          Number(
              "step_gamma",
              [](auto& o) -> auto& { return o.optimizer.step_gamma; }),
          Number(
              "poly_power",
              [](auto& o) -> auto& { return o.optimizer.poly_power; }),
          Number(
              "warmup_epochs",
              [](auto& o) -> auto& { return o.optimizer.warmup_epochs; }),
          Number(
              "final_learning_rate", [](auto& o) -> auto& {
                return o.optimizer.final_learning_rate;
              })};
}

std::vector<Setting> MembershipSettings() {
  return {
      CohortSize("workers"),
      Choice<OnWorkerLoss>(
          "on_worker_loss",
          {{"wait", OnWorkerLoss::kWait},
           {"continue", OnWorkerLoss::kContinue}},
          [](auto& o) -> auto& { return o.on_worker_loss; }),
      Number(
          "lease", [](auto& o) -> auto& { return o.lease; }),
      Number(
          "reconnect_grace",
          [](auto& o) -> auto& { return o.reconnect_grace; }),
      Number(
          "step_deadline", [](auto& o) -> auto& { return o.step_deadline; }),
      Number(
          "replacement_deadline",
          [](auto& o) -> auto& { return o.replacement_deadline; }),
      Number(
          "checkpoint_every",
          [](auto& o) -> auto& { return o.checkpoint_every; })};
}

const std::vector<Setting>& All() {
  // Built once, never changed; leaked, so that no order of destruction
  // matters.
  static const std::vector<Setting>& all = *[] {
    auto* list = new std::vector<Setting>;
    for (auto* part : {&PolicySettings, &OptimizerSettings, &ScheduleSettings,
                       &MembershipSettings}) {
      for (Setting& setting : part()) list->push_back(std::move(setting));
    }
    return list;
  }();
  return all;
}

const Setting* FindSetting(absl::string_view name) {
  for (const Setting& setting : All()) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> SettingNames() {
  std::vector<std::string> names;
  for (const Setting& setting : All()) names.emplace_back(setting.name);
  return names;
}

bool ActsAtOnce(absl::string_view name) {
  return FindFlag(ServerFlagTable(), name)->change == FlagChange::kAtOnce;
}

absl::Status CheckSettingLimits(const CoordinatorOptions& options) {
  for (const Setting& setting : All()) {
    const FlagInfo& flag = *FindFlag(ServerFlagTable(), setting.name);
    COHORT_RETURN_IF_ERROR(CheckLimits(flag, setting.print(options),
                                       absl::StrCat("--", setting.name)));
  }
  return absl::OkStatus();
}

absl::Status SetSetting(absl::string_view name, absl::string_view value,
                        CoordinatorOptions& options) {
  const Setting* setting = FindSetting(name);
  if (setting == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("--", name, ": no such setting, want one of ",
                     absl::StrJoin(SettingNames(), ", ")));
  }
  const std::string wanted = setting->read(value, options);
  if (wanted.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": got '", value, "', want ", wanted));
}

absl::Status SetSettings(const SettingValues& values,
                         CoordinatorOptions& options) {
  for (const auto& [name, value] : values) {
    COHORT_RETURN_IF_ERROR(SetSetting(name, value, options));
  }
  return absl::OkStatus();
}

SettingValues SettingsOf(const CoordinatorOptions& options) {
  SettingValues values;
  for (const Setting& setting : All()) {
    values[std::string(setting.name)] = setting.print(options);
  }
  return values;
}

SettingValues Difference(const SettingValues& before,
                         const CoordinatorOptions& after) {
  SettingValues changed;
  for (const auto& [name, value] : SettingsOf(after)) {
    const auto old = before.find(name);
    if (old == before.end() || old->second != value) changed[name] = value;
  }
  return changed;
}

std::string ChangeText(const SettingValues& before,
                       const SettingValues& changed) {
  return absl::StrJoin(
      changed, ", ", [&before](std::string* out, const auto& change) {
        const auto old = before.find(change.first);
        absl::StrAppend(out, change.first, " ",
                        old == before.end() ? "(new)" : old->second, " -> ",
                        change.second);
      });
}

std::string NoteText(const ChangeNote& note) {
  if (note.author.empty()) return note.reason;
  return absl::StrCat("by ", note.author, note.reason.empty() ? "" : ": ",
                      note.reason);
}

}  // namespace cohort
