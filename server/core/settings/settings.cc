#include "server/core/settings/settings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flags/flag_table.h"
#include "common/status_macros.h"
#include "server/core/settings/setting_kinds.h"

namespace cohort {
namespace {

using Options = CoordinatorOptions;

// A row of server_flags.inc, bound to its member of the options.
struct Setting {
  const FlagInfo* flag;
  // Returns what was wanted, or nothing if `value` was read.
  std::string (*read)(absl::string_view value, const FlagLimits& limits,
                      Options& options);
  std::string (*print)(const Options& options, const FlagLimits& limits);
  bool (*is_same)(const Options& a, const Options& b);
  void (*copy)(const Options& from, Options& to);

  absl::string_view name() const { return flag->name; }
  bool acts_at_once() const { return flag->change == FlagChange::kAtOnce; }
  std::string Print(const Options& options) const {
    return print(options, flag->limits);
  }
};

// `Member` is the type of a lambda from the options to a reference to the
// value.
template <typename Kind, typename Member>
Setting Row(absl::string_view name, Member /*member*/) {
  return {
      .flag = FindFlag(ServerFlagTable(), name),
      .read = [](absl::string_view value, const FlagLimits& limits,
                 Options& o) -> std::string {
        if constexpr (requires { Kind::Read(value, Member()(o)); }) {
          return Kind::Read(value, Member()(o));
        } else {
          return Kind::Read(value, limits, Member()(o));
        }
      },
      .print = [](const Options& o, const FlagLimits& limits) -> std::string {
        if constexpr (requires { Kind::Print(Member()(o)); }) {
          return Kind::Print(Member()(o));
        } else {
          return Kind::Print(Member()(o), limits);
        }
      },
      .is_same = [](const Options& a,
                    const Options& b) { return Member()(a) == Member()(b); },
      .copy = [](const Options& from,
                 Options& to) { Member()(to) = Member()(from); }};
}

// In the order of their names, in which texts list them too.
std::vector<Setting> MakeSettings() {
  std::vector<Setting> all = {
#define COHORT_FLAG_SUBJECT(name, heading)
#define COHORT_FLAG(type, name, value, limits, help)
#define COHORT_TEXT_SETTING(kind, name, member, ...) \
  Row<setting_kinds::kind>(                          \
      #name, [](auto& o) -> decltype(auto) { return (o.member); }),
#define COHORT_SETTING(type, ...) COHORT_TEXT_SETTING(Number<type>, __VA_ARGS__)
#include "common/flags/server_flags.inc"
#undef COHORT_FLAG_SUBJECT
#undef COHORT_FLAG
#undef COHORT_TEXT_SETTING
#undef COHORT_SETTING
  };
  std::sort(all.begin(), all.end(), [](const Setting& a, const Setting& b) {
    return a.name() < b.name();
  });
  return all;
}

// Built once, never changed; leaked, so that no order of destruction matters.
const std::vector<Setting>& All() {
  static const auto& all = *new auto(MakeSettings());
  return all;
}

const Setting* FindSetting(absl::string_view name) {
  for (const Setting& setting : All()) {
    if (setting.name() == name) return &setting;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> SettingNames() {
  std::vector<std::string> names;
  for (const Setting& setting : All()) names.emplace_back(setting.name());
  return names;
}

bool ActsAtOnce(absl::string_view name) {
  return FindSetting(name)->acts_at_once();
}

absl::Status CheckSettingLimits(const Options& options) {
  for (const Setting& setting : All()) {
    COHORT_RETURN_IF_ERROR(CheckLimits(*setting.flag, setting.Print(options),
                                       absl::StrCat("--", setting.name())));
  }
  return absl::OkStatus();
}

absl::Status SetSetting(absl::string_view name, absl::string_view value,
                        Options& options) {
  const Setting* setting = FindSetting(name);
  if (setting == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, ": no such setting, want one of ",
                     absl::StrJoin(SettingNames(), ", ")));
  }
  const std::string wanted =
      setting->read(value, setting->flag->limits, options);
  if (wanted.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": got '", value, "', want ", wanted));
}

absl::Status SetSettings(const SettingValues& values, Options& options) {
  for (const auto& [name, value] : values) {
    COHORT_RETURN_IF_ERROR(SetSetting(name, value, options));
  }
  return absl::OkStatus();
}

std::string SettingText(absl::string_view name, const Options& options) {
  return FindSetting(name)->Print(options);
}

SettingValues SettingsOf(const Options& options) {
  SettingValues values;
  for (const Setting& setting : All()) {
    values[std::string(setting.name())] = setting.Print(options);
  }
  return values;
}

void CopySettings(const Options& from, bool at_once, Options& to) {
  for (const Setting& setting : All()) {
    if (setting.acts_at_once() == at_once) setting.copy(from, to);
  }
}

SettingValues Difference(const Options& before, const Options& after) {
  SettingValues changed;
  for (const Setting& setting : All()) {
    if (setting.is_same(before, after)) continue;
    changed[std::string(setting.name())] = setting.Print(after);
  }
  return changed;
}

std::string ChangeText(const Options& before, const Options& after) {
  std::string text;
  for (const Setting& setting : All()) {
    if (setting.is_same(before, after)) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", setting.name(), " ",
                    setting.Print(before), " -> ", setting.Print(after));
  }
  return text;
}

std::string NoteText(const ChangeNote& note) {
  if (note.author.empty()) return note.reason;
  return absl::StrCat("by ", note.author, note.reason.empty() ? "" : ": ",
                      note.reason);
}

}  // namespace cohort
