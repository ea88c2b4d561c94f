#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/core/options.h"

namespace cohort {

// Settings by name, as texts: "learning_rate" -> "0.1".
using SettingValues = std::map<std::string, std::string>;

// The names of all settings of a run that can be given as a flag and changed
// while the run goes on; flags, Admin.SetPolicy, checkpoints and the history
// of changes all use this one list.
std::vector<std::string> SettingNames();

// The words that a setting takes as its value, or as an entry of it, for
// completion: "sync", "bounded", "async". Empty: a number or free text.
// The name must be known.
std::vector<std::string> SettingWords(absl::string_view name);

// True if a change acts at once (leases, deadlines), false if it takes effect
// at a version, when nothing is in flight.
// The name must be known.
bool ActsAtOnce(absl::string_view name);

// Reads `value` into `options`. Checks the text, not how it fits the others:
// call Validate afterwards.
// Errors: NotFound (unknown name; lists the known ones), InvalidArgument
//   naming the setting, the value seen and the values wanted.
absl::Status SetSetting(absl::string_view name, absl::string_view value,
                        CoordinatorOptions& options);

// All settings; reading them back gives equal options.
SettingValues SettingsOf(const CoordinatorOptions& options);

// The settings of `after` that are not the same in `before`.
SettingValues Difference(const SettingValues& before,
                         const CoordinatorOptions& after);

// "learning_rate 0.1 -> 0.01, schedule cosine -> constant".
std::string ChangeText(const SettingValues& before,
                       const SettingValues& changed);

}  // namespace cohort
