#include "server/core/settings.h"

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Options = CoordinatorOptions;

struct Setting {
  absl::string_view name;
  bool at_once = false;
  // The words that it takes; empty: it takes others.
  std::vector<std::string> words = {};
  // Returns what was wanted, or nothing if `value` was read.
  std::function<std::string(absl::string_view value, Options&)> read;
  std::function<std::string(const Options&)> print;
};

template <typename T>
using Field = std::function<T&(Options&)>;

template <typename T>
const T& ReadOnly(const Field<T>& field, const Options& options) {
  return field(const_cast<Options&>(options));
}

std::string ParseNumber(absl::string_view text, double& value) {
  return absl::SimpleAtod(text, &value) && std::isfinite(value) ? ""
                                                                : "a number";
}
std::string ParseNumber(absl::string_view text, int64_t& value) {
  return absl::SimpleAtoi(text, &value) ? "" : "a whole number";
}
std::string ParseNumber(absl::string_view text, int32_t& value) {
  return absl::SimpleAtoi(text, &value) ? "" : "a whole number";
}
std::string ParseNumber(absl::string_view text, bool& value) {
  return absl::SimpleAtob(text, &value) ? "" : "true or false";
}
std::string ParseNumber(absl::string_view text, absl::Duration& value) {
  return absl::ParseDuration(text, &value) ? "" : "a duration such as 10s";
}

// Enough digits to read the same number back.
std::string PrintNumber(double value) {
  const std::string brief = absl::StrCat(value);
  double back = 0;
  if (absl::SimpleAtod(brief, &back) && back == value) return brief;
  return absl::StrFormat("%.17g", value);
}
std::string PrintNumber(int64_t value) { return absl::StrCat(value); }
std::string PrintNumber(int32_t value) { return absl::StrCat(value); }
std::string PrintNumber(bool value) { return value ? "true" : "false"; }
std::string PrintNumber(absl::Duration value) {
  return absl::FormatDuration(value);
}

// A number may be any; of what is true or false there are two.
template <typename T>
std::vector<std::string> WordsOf() {
  if constexpr (std::is_same_v<T, bool>) return {"true", "false"};
  return {};
}

template <typename T>
Setting Number(absl::string_view name, Field<T> field, bool at_once = false) {
  return {.name = name,
          .at_once = at_once,
          .words = WordsOf<T>(),
          .read =
              [field](absl::string_view text, Options& options) {
                T value{};
                std::string wanted = ParseNumber(text, value);
                if (wanted.empty()) field(options) = value;
                return wanted;
              },
          .print =
              [field](const Options& options) {
                return PrintNumber(ReadOnly(field, options));
              }};
}

template <typename T>
using Names = std::vector<std::pair<absl::string_view, T>>;

template <typename T>
std::string ListOf(const Names<T>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const auto& name) {
    absl::StrAppend(out, name.first);
  });
}

template <typename T>
std::vector<std::string> WordsOf(const Names<T>& names) {
  std::vector<std::string> words;
  for (const auto& [name, value] : names) words.emplace_back(name);
  return words;
}

template <typename T>
const T* Find(const Names<T>& names, absl::string_view text) {
  for (const auto& [name, value] : names) {
    if (name == text) return &value;
  }
  return nullptr;
}

template <typename T>
absl::string_view NameOf(const Names<T>& names, T value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "";
}

template <typename T>
Setting Choice(absl::string_view name, Names<T> names, Field<T> field,
               bool at_once = false) {
  return {.name = name,
          .at_once = at_once,
          .words = WordsOf(names),
          .read = [names, field](absl::string_view text,
                                 Options& options) -> std::string {
            const T* value = Find(names, text);
            if (value == nullptr) {
              return absl::StrCat("one of ", ListOf(names));
            }
            field(options) = *value;
            return "";
          },
          .print =
              [names, field](const Options& options) {
                return std::string(NameOf(names, ReadOnly(field, options)));
              }};
}

// Several of `names`, separated by commas; none: "auto".
template <typename T>
Setting Choices(absl::string_view name, Names<T> names,
                Field<std::vector<T>> field) {
  std::vector<std::string> words = WordsOf(names);
  words.insert(words.begin(), "auto");
  return {
      .name = name,
      .words = std::move(words),
      .read = [names, field](absl::string_view text,
                             Options& options) -> std::string {
        std::vector<T> values;
        const std::vector<absl::string_view> parts =
            absl::StrSplit(text == "auto" ? "" : text, ',', absl::SkipEmpty());
        for (absl::string_view part : parts) {
          const T* value = Find(names, part);
          if (value == nullptr) {
            return absl::StrCat("auto, or a list of ", ListOf(names));
          }
          values.push_back(*value);
        }
        field(options) = std::move(values);
        return "";
      },
      .print =
          [names, field](const Options& options) {
            if (ReadOnly(field, options).empty()) return std::string("auto");
            return absl::StrJoin(ReadOnly(field, options), ",",
                                 [&names](std::string* out, T value) {
                                   absl::StrAppend(out, NameOf(names, value));
                                 });
          }};
}

// A number that may be absent: "auto".
Setting OptionalNumber(absl::string_view name,
                       const Field<std::optional<int64_t>>& field) {
  return {
      .name = name,
      .read = [field](absl::string_view text, Options& options) -> std::string {
        int64_t value = 0;
        if (text == "auto") {
          field(options).reset();
        } else if (absl::SimpleAtoi(text, &value)) {
          field(options) = value;
        } else {
          return "auto or a whole number";
        }
        return "";
      },
      .print =
          [field](const Options& options) {
            const std::optional<int64_t>& value = ReadOnly(field, options);
            return value.has_value() ? absl::StrCat(*value) : "auto";
          }};
}

std::string ParseEntry(absl::string_view text, double& value) {
  return ParseNumber(text, value);
}
std::string ParseEntry(absl::string_view text, std::string& value) {
  value = std::string(text);
  return value.empty() ? "entries that are not empty" : "";
}
std::string PrintEntry(double value) { return PrintNumber(value); }
std::string PrintEntry(const std::string& value) { return value; }

constexpr absl::string_view kNone = "none";

// Entries separated by `separator`, blanks around them ignored; "none" or
// nothing: an empty list.
template <typename T>
Setting List(absl::string_view name, char separator,
             Field<std::vector<T>> field) {
  return {.name = name,
          .read = [separator, field](absl::string_view text,
                                     Options& options) -> std::string {
            std::vector<T> values;
            text = absl::StripAsciiWhitespace(text);
            if (!text.empty() && text != kNone) {
              for (absl::string_view part : absl::StrSplit(text, separator)) {
                std::string wanted = ParseEntry(
                    absl::StripAsciiWhitespace(part), values.emplace_back());
                if (!wanted.empty()) {
                  return absl::StrCat("none, or a list separated by '",
                                      absl::string_view(&separator, 1),
                                      "': ", wanted);
                }
              }
            }
            field(options) = std::move(values);
            return "";
          },
          .print =
              [separator, field](const Options& options) {
                const std::vector<T>& values = ReadOnly(field, options);
                if (values.empty()) return std::string(kNone);
                return absl::StrJoin(values, absl::string_view(&separator, 1),
                                     [](std::string* out, const T& value) {
                                       absl::StrAppend(out, PrintEntry(value));
                                     });
              }};
}

std::vector<Setting> PolicySettings() {
  return {
      Choice<AggregationKind>(
          "aggregation",
          {{"sync", AggregationKind::kSync},
           {"bounded", AggregationKind::kBounded},
           {"async", AggregationKind::kAsync}},
          [](Options& o) -> AggregationKind& { return o.policy.aggregation; }),
      Number<int32_t>(
          "min_pushes",
          [](Options& o) -> int32_t& { return o.policy.pushes_min; }),
      Number<int64_t>("max_lead",
                      [](Options& o) -> int64_t& { return o.policy.lead_max; }),
      Choice<StalenessRule>(
          "staleness",
          {{"keep", StalenessRule::kKeep},
           {"drop", StalenessRule::kDrop},
           {"scale", StalenessRule::kScale},
           {"compensate", StalenessRule::kCompensate}},
          [](Options& o) -> StalenessRule& { return o.policy.staleness.rule; }),
      Number<int64_t>("max_staleness",
                      [](Options& o) -> int64_t& {
                        return o.policy.staleness.versions_max;
                      }),
      OptionalNumber("staleness_free",
                     [](Options& o) -> std::optional<int64_t>& {
                       return o.policy.staleness.versions_free;
                     }),
      Number<double>("compensation",
                     [](Options& o) -> double& {
                       return o.policy.staleness.compensation;
                     }),
      Number<bool>("compensation_adaptive",
                   [](Options& o) -> bool& {
                     return o.policy.staleness.compensation_adaptive;
                   }),
      Choice<NormalizationKind>("normalization",
                                {{"auto", NormalizationKind::kAuto},
                                 {"global", NormalizationKind::kGlobal},
                                 {"local", NormalizationKind::kLocal}},
                                [](Options& o) -> NormalizationKind& {
                                  return o.policy.normalization;
                                }),
      Number<int32_t>(
          "normalization_group",
          [](Options& o) -> int32_t& { return o.policy.normalization_group; }),
      Choices<StatisticsKind>("bn_statistics",
                              {{"sync", StatisticsKind::kSync},
                               {"async", StatisticsKind::kAsync},
                               {"chief", StatisticsKind::kChief},
                               {"after", StatisticsKind::kAfter},
                               {"batch", StatisticsKind::kBatch}},
                              [](Options& o) -> std::vector<StatisticsKind>& {
                                return o.policy.statistics;
                              }),
      Number<bool>(
          "bn_mixture_variance",
          [](Options& o) -> bool& { return o.policy.mixture_variance; }),
      Number<int64_t>("precise_batches", [](Options& o) -> int64_t& {
        return o.policy.precise_batches;
      })};
}

std::vector<Setting> OptimizerSettings() {
  return {Choice<OptimizerKind>(
              "optimizer",
              {{"sgd", OptimizerKind::kSgd},
               {"momentum", OptimizerKind::kMomentum},
               {"nesterov", OptimizerKind::kNesterov},
               {"adam", OptimizerKind::kAdam},
               {"adamw", OptimizerKind::kAdamW},
               {"lars", OptimizerKind::kLars}},
              [](Options& o) -> OptimizerKind& { return o.optimizer.kind; }),
          Number<double>(
              "learning_rate",
              [](Options& o) -> double& { return o.optimizer.learning_rate; }),
          Number<double>(
              "momentum",
              [](Options& o) -> double& { return o.optimizer.momentum; }),
          Number<double>(
              "adam_beta1",
              [](Options& o) -> double& { return o.optimizer.adam_beta1; }),
          Number<double>(
              "adam_beta2",
              [](Options& o) -> double& { return o.optimizer.adam_beta2; }),
          Number<double>(
              "adam_epsilon",
              [](Options& o) -> double& { return o.optimizer.adam_epsilon; }),
          Number<double>(
              "lars_trust",
              [](Options& o) -> double& { return o.optimizer.lars_trust; }),
          Number<double>(
              "weight_decay",
              [](Options& o) -> double& { return o.optimizer.weight_decay; }),
          Number<bool>(
              "decay_everything",
              [](Options& o) -> bool& { return o.optimizer.decay_everything; }),
          List<std::string>("no_decay", ',',
                            [](Options& o) -> std::vector<std::string>& {
                              return o.optimizer.no_decay;
                            }),
          Number<double>(
              "clip_norm",
              [](Options& o) -> double& { return o.optimizer.clip_norm; }),
          List<std::string>("freeze", ';',
                            [](Options& o) -> std::vector<std::string>& {
                              return o.optimizer.freeze;
                            })};
}

std::vector<Setting> ScheduleSettings() {
  return {Choice<ScheduleKind>(
              "schedule",
              {{"constant", ScheduleKind::kConstant},
               {"step", ScheduleKind::kStep},
               {"cosine", ScheduleKind::kCosine},
               {"polynomial", ScheduleKind::kPolynomial}},
              [](Options& o) -> ScheduleKind& { return o.optimizer.schedule; }),
          List<double>("step_epochs", ',',
                       [](Options& o) -> std::vector<double>& {
                         return o.optimizer.step_epochs;
                       }),
          Number<double>(
              "step_gamma",
              [](Options& o) -> double& { return o.optimizer.step_gamma; }),
          Number<double>(
              "poly_power",
              [](Options& o) -> double& { return o.optimizer.poly_power; }),
          Number<double>(
              "warmup_epochs",
              [](Options& o) -> double& { return o.optimizer.warmup_epochs; }),
          Number<double>("final_learning_rate", [](Options& o) -> double& {
            return o.optimizer.final_learning_rate;
          })};
}

std::vector<Setting> MembershipSettings() {
  constexpr bool kAtOnce = true;
  return {
      Number<int32_t>("workers",
                      [](Options& o) -> int32_t& { return o.workers; }),
      Choice<OnWorkerLoss>(
          "on_worker_loss",
          {{"wait", OnWorkerLoss::kWait},
           {"continue", OnWorkerLoss::kContinue}},
          [](Options& o) -> OnWorkerLoss& { return o.on_worker_loss; },
          kAtOnce),
      Number<absl::Duration>(
          "lease", [](Options& o) -> absl::Duration& { return o.lease; },
          kAtOnce),
      Number<absl::Duration>(
          "reconnect_grace",
          [](Options& o) -> absl::Duration& { return o.reconnect_grace; },
          kAtOnce),
      Number<absl::Duration>(
          "step_deadline",
          [](Options& o) -> absl::Duration& { return o.step_deadline; },
          kAtOnce),
      Number<absl::Duration>(
          "replacement_deadline",
          [](Options& o) -> absl::Duration& { return o.replacement_deadline; },
          kAtOnce),
      Number<int64_t>(
          "checkpoint_every",
          [](Options& o) -> int64_t& { return o.checkpoint_every; }, kAtOnce)};
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

std::vector<std::string> SettingWords(absl::string_view name) {
  return FindSetting(name)->words;
}

bool ActsAtOnce(absl::string_view name) { return FindSetting(name)->at_once; }

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

}  // namespace cohort
