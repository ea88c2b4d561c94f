#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/core/settings/options.h"

namespace cohort {

// Settings by name, as texts: "learning_rate" -> "0.1". For people, files and
// the wire; the server itself works with CoordinatorOptions.
using SettingValues = std::map<std::string, std::string>;

// The names of all settings of a run: the rows of ServerFlagTable() that can be
// changed while it continues. Flags, Admin.SetPolicy, checkpoints and the
// history of changes use them.
std::vector<std::string> SettingNames();

// True if a change acts at once (leases, deadlines), false if it takes effect
// at a version, when nothing is in flight.
// The name must be known.
bool ActsAtOnce(absl::string_view name);

// Checks each setting against the limits of its flag, apart from how they fit
// together.
// Errors: InvalidArgument naming the setting, the value seen and the values
//   wanted.
absl::Status CheckSettingLimits(const CoordinatorOptions& options);

// Reads `value` into `options`. Checks the text, not how it fits the others:
// call Validate afterwards.
// Errors: InvalidArgument: an unknown name, with the known ones; or naming the
//   setting, the value seen and the values wanted.
absl::Status SetSetting(absl::string_view name, absl::string_view value,
                        CoordinatorOptions& options);

// Sets all of `values`, up to the first that fails.
// Errors: those of SetSetting.
absl::Status SetSettings(const SettingValues& values,
                         CoordinatorOptions& options);

// The value of the setting `name`, which must be known.
std::string SettingText(absl::string_view name,
                        const CoordinatorOptions& options);

// All settings; reading them back gives equal options.
SettingValues SettingsOf(const CoordinatorOptions& options);

// Copies the settings that act at once, or those that do not.
void CopySettings(const CoordinatorOptions& from, bool at_once,
                  CoordinatorOptions& to);

// The settings of `after` that are not the same in `before`.
SettingValues Difference(const CoordinatorOptions& before,
                         const CoordinatorOptions& after);

// The same in words: "learning_rate 0.1 -> 0.01, schedule cosine -> constant".
std::string ChangeText(const CoordinatorOptions& before,
                       const CoordinatorOptions& after);

// The author of a change and the reason for it, as the client states them; both
// may be empty.
struct ChangeNote {
  std::string author;
  std::string reason;

  friend bool operator==(const ChangeNote&, const ChangeNote&) = default;
};

// "by ana@host: too slow"; empty for an empty note.
std::string NoteText(const ChangeNote& note);

}  // namespace cohort
