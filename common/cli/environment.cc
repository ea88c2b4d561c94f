#include "common/cli/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <regex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/cli/command_line.h"
#include "common/progress_report.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr absl::string_view kPrefix = "COHORT_";

// Variables that are no flags: those of deploy/, tests/, the build, cohortctl
// and supervisors.
constexpr std::array<absl::string_view, 15> kNoFlags = {
    "COHORT_BIN_DIR",      "COHORT_BUILD_WRAPPER",
    "COHORT_CAMVID_DIR",   "COHORT_GPU_TEST_ELEMENTS",
    "COHORT_KILLS",        "COHORT_MUTANTS",
    kProgressVariable,     "COHORT_SCREENSHOT_DIR",
    "COHORT_SIM_SEEDS",    "COHORT_SKIP_DEPS",
    "COHORT_SOAK_MINUTES", "COHORT_SOURCE_DIR",
    "COHORT_TAG",          "COHORT_TOKEN_FILE",
    "COHORT_TORCH_DIR"};

// True for variables that kubelet and Docker's links set for a neighbouring
// service.
bool IsServiceLink(const std::string& name, const std::string& value) {
  static const std::regex& links = *new std::regex(
      "\\w+_(SERVICE_HOST|SERVICE_PORT(_\\w+)?|"
      "PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)");
  static const std::regex& url = *new std::regex("(tcp|udp|sctp)://.*");
  return std::regex_match(name, links) ||
         (absl::EndsWith(name, "_PORT") && std::regex_match(value, url));
}

std::vector<std::string> VariablesOf(absl::Span<const FlagInfo> flags) {
  std::vector<std::string> variables;
  for (const FlagInfo& flag : flags) variables.push_back(VariableOf(flag.name));
  return variables;
}

// Every name that a program or script of Cohort reads.
std::vector<std::string> KnownVariables() {
  std::vector<std::string> known(kNoFlags.begin(), kNoFlags.end());
  for (const FlagTable* flags : {&ServerFlagTable(), &WorkerFlagTable()}) {
    for (std::string& variable : VariablesOf(*flags)) {
      known.push_back(std::move(variable));
    }
  }
  return known;
}

bool Holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct Variable {
  std::string name;
  std::string value;
};

// The variables that may be meant for a program of Cohort.
std::vector<Variable> VariablesIn(absl::Span<const std::string> environment) {
  std::vector<Variable> variables;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (!absl::StartsWith(entry, kPrefix) || equals == entry.npos) continue;
    Variable variable{.name = entry.substr(0, equals),
                      .value = entry.substr(equals + 1)};
    if (variable.value.empty() ||
        IsServiceLink(variable.name, variable.value)) {
      continue;
    }
    variables.push_back(std::move(variable));
  }
  return variables;
}

absl::Status UnknownVariable(const std::string& name,
                             const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(name, known);
  return absl::NotFoundError(
      absl::StrCat("unknown variable ", name, " in the environment",
                   nearest.empty() ? "" : "; did you mean ", nearest,
                   nearest.empty() ? "; unset it, or use COHORT_ and the name "
                                     "of a flag in capital letters"
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

absl::Status CheckVariables(absl::Span<const std::string> environment) {
  const std::vector<std::string> known = KnownVariables();
  for (const Variable& variable : VariablesIn(environment)) {
    if (!Holds(known, variable.name)) {
      return UnknownVariable(variable.name, known);
    }
  }
  return absl::OkStatus();
}

absl::Status SetFlagsFromEnvironment(absl::Span<const std::string> environment,
                                     absl::Span<const FlagInfo> flags,
                                     std::set<std::string>& given) {
  const std::vector<std::string> own = VariablesOf(flags);
  std::vector<std::string> known = KnownVariables();
  known.insert(known.end(), own.begin(), own.end());
  for (const auto& [name, value] : VariablesIn(environment)) {
    if (!Holds(known, name)) return UnknownVariable(name, known);
    if (!Holds(own, name)) continue;
    const std::string flag = absl::AsciiStrToLower(name.substr(kPrefix.size()));
    if (given.contains(flag)) continue;
    COHORT_RETURN_IF_ERROR(SetFlag(flag, value, name));
    given.insert(flag);
  }
  return absl::OkStatus();
}

}  // namespace cohort
