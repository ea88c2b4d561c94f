#include "common/cli/command_line.h"

#include <algorithm>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/name_pattern.h"

namespace cohort {
namespace {

// Words with more typing errors than this are not suggested.
constexpr size_t kTyposMax = 3;

absl::Status UnknownFlag(absl::string_view name) {
  std::vector<std::string> known;
  for (const auto& [flag_name, flag] : absl::GetAllFlags()) {
    known.emplace_back(flag_name.data(), flag_name.size());
  }
  const std::string nearest = NearestWord(name, known);
  return absl::NotFoundError(absl::StrCat(
      "unknown flag --", name, nearest.empty() ? "" : "; did you mean --",
      nearest, nearest.empty() ? "" : "?"));
}

absl::Status AssignFlag(absl::CommandLineFlag& flag, absl::string_view value,
                        absl::string_view spelled) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  // Abseil's error repeats the value and the name; the type's own reason comes
  // after.
  absl::string_view reason = error;
  const size_t separator = reason.find("; ");
  reason.remove_prefix(separator == reason.npos ? reason.size()
                                                : separator + 2);
  return absl::InvalidArgumentError(absl::StrCat(
      spelled, ": got '", value, "', want a value like ", flag.DefaultValue(),
      reason.empty() ? "" : " (", reason, reason.empty() ? "" : ")"));
}

absl::Status AssignFlag(absl::CommandLineFlag& flag, absl::string_view value) {
  return AssignFlag(flag, value, absl::StrCat("--", flag.Name()));
}

}  // namespace

absl::Status SetFlag(absl::string_view name, absl::string_view value,
                     absl::string_view spelled) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr) return UnknownFlag(name);
  return AssignFlag(*flag, value, spelled);
}

std::string NearestWord(absl::string_view word,
                        const std::vector<std::string>& known) {
  // A short word is close to every other short word.
  size_t best = std::min(kTyposMax, (word.size() + 1) / 2) + 1;
  std::string nearest;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(word, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

absl::StatusOr<HelpRequest> SetFlags(absl::Span<char* const> arguments,
                                     std::set<std::string>* given) {
  for (size_t i = 1; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      return HelpRequest{.asked = true};
    }
    if (absl::ConsumePrefix(&argument, "--help=")) {
      return HelpRequest{.asked = true, .subject = std::string(argument)};
    }
    if (!absl::ConsumePrefix(&argument, "--") || argument.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("got argument '", arguments[i], "', want only flags"));
    }
    const size_t equals = argument.find('=');
    const absl::string_view name = argument.substr(0, equals);
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const bool has_value = equals != absl::string_view::npos;
    absl::Status status;
    if (flag != nullptr && has_value) {
      status = AssignFlag(*flag, argument.substr(equals + 1));
    } else if (flag != nullptr && flag->IsOfType<bool>()) {
      status = AssignFlag(*flag, "true");
    } else if (flag != nullptr && i + 1 < arguments.size()) {
      status = AssignFlag(*flag, arguments[++i]);
    } else if (flag != nullptr) {
      status = absl::FailedPreconditionError(
          absl::StrCat("--", name, " needs a value"));
    } else {
      flag = absl::StartsWith(name, "no") && !has_value
                 ? absl::FindCommandLineFlag(name.substr(2))
                 : nullptr;
      status = flag != nullptr && flag->IsOfType<bool>()
                   ? AssignFlag(*flag, "false")
                   : UnknownFlag(name);
    }
    if (!status.ok()) return status;
    if (given == nullptr) continue;
    const absl::string_view set = flag->Name();
    given->emplace(set.data(), set.size());
  }
  return HelpRequest();
}

ExitCode ExitCodeOf(const absl::Status& flag_error) {
  return flag_error.code() == absl::StatusCode::kInvalidArgument ? kExitConfig
                                                                 : kExitUsage;
}

absl::Status BadChoice(absl::string_view flag, absl::string_view value,
                       const std::vector<absl::string_view>& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": got '", value,
                                                 "', want one of ",
                                                 absl::StrJoin(allowed, ", ")));
}

}  // namespace cohort
