#include "common/process/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <regex>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/process/command_line.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr absl::string_view kPrefix = "COHORT_";

// Read by deploy/, tests/ and the build, never by a program.
constexpr std::array<absl::string_view, 7> kOfScripts = {
    "COHORT_BIN_DIR",        "COHORT_CAMVID_DIR", "COHORT_KILLS",
    "COHORT_SCREENSHOT_DIR", "COHORT_SIM_SEEDS",  "COHORT_SKIP_DEPS",
    "COHORT_SOURCE_DIR"};

// What kubelet and Docker's links set for a service next to us.
bool IsServiceLink(const std::string& name, const std::string& value) {
  static const std::regex& links = *new std::regex(
      "\\w+_(SERVICE_HOST|SERVICE_PORT(_\\w+)?|"
      "PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)");
  static const std::regex& url = *new std::regex("(tcp|udp|sctp)://.*");
  return std::regex_match(name, links) ||
         (absl::EndsWith(name, "_PORT") && std::regex_match(value, url));
}

std::vector<std::string> VariablesOf(absl::string_view source) {
  std::vector<std::string> variables;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::StrContains(flag->Filename(), source)) {
      variables.push_back(VariableOf(name));
    }
  }
  return variables;
}

absl::Status UnknownVariable(const std::string& name,
                             const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(name, known);
  return absl::NotFoundError(absl::StrCat(
      "unknown variable ", name, " in the environment",
      nearest.empty() ? "" : "; did you mean ", nearest,
      nearest.empty() ? "; unset it, or name a flag: COHORT_ and its name in "
                        "capital letters"
                      : "?"));
}

}  // namespace

std::vector<std::string> Environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    all.emplace_back(*entry);
  }
  return all;
}

absl::string_view ValueIn(absl::Span<const std::string> environment,
                          absl::string_view name) {
  for (const std::string& entry : environment) {
    absl::string_view value = entry;
    if (absl::ConsumePrefix(&value, name) && absl::ConsumePrefix(&value, "=")) {
      return value;
    }
  }
  return "";
}

std::string VariableOf(absl::string_view flag) {
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(flag));
}

absl::Status SetFlagsFromEnvironment(absl::Span<const std::string> environment,
                                     absl::string_view source,
                                     std::set<std::string>& given) {
  const std::vector<std::string> known = VariablesOf(source);
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (!absl::StartsWith(entry, kPrefix) || equals == entry.npos) continue;
    const std::string name = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    if (value.empty() || IsServiceLink(name, value) ||
        std::find(kOfScripts.begin(), kOfScripts.end(), name) !=
            kOfScripts.end()) {
      continue;
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return UnknownVariable(name, known);
    }
    const std::string flag = absl::AsciiStrToLower(name.substr(kPrefix.size()));
    if (given.contains(flag)) continue;
    COHORT_RETURN_IF_ERROR(SetFlag(flag, value, name));
    given.insert(flag);
  }
  return absl::OkStatus();
}

}  // namespace cohort
