#include "worker/train/parameter_groups.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/name_pattern.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status Refuse(absl::string_view part, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--groups: got '", part, "', want ", wanted));
}

// "lr=10" or "decay=0".
absl::Status ReadFactor(absl::string_view text, ParameterGroup& group) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  double value = 0;
  if (!absl::SimpleAtod(parts.second, &value) || !std::isfinite(value) ||
      value < 0) {
    return Refuse(text, "lr=FACTOR or decay=FACTOR, a number of at least 0");
  }
  if (parts.first == "lr" && !group.rate.has_value()) {
    group.rate = value;
  } else if (parts.first == "decay" && !group.decay.has_value()) {
    group.decay = value;
  } else {
    return Refuse(text, "lr=FACTOR and decay=FACTOR, each at most once");
  }
  return absl::OkStatus();
}

void Apply(const ParameterGroup& group, ParameterSpec& parameter) {
  if (group.rate.has_value()) parameter.rate_multiplier = *group.rate;
  if (!group.decay.has_value()) return;
  parameter.decay_exempt = *group.decay == 0;
  parameter.decay_multiplier = parameter.decay_exempt ? 1 : *group.decay;
}

}  // namespace

absl::StatusOr<std::vector<ParameterGroup>> ParseGroups(
    absl::string_view text) {
  std::vector<ParameterGroup> groups;
  for (absl::string_view part :
       absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    part = absl::StripAsciiWhitespace(part);
    const size_t colon = part.rfind(':');
    if (colon == absl::string_view::npos || colon == 0) {
      return Refuse(part, "PATTERN:lr=FACTOR,decay=FACTOR");
    }
    ParameterGroup group{.pattern = std::string(part.substr(0, colon))};
    for (absl::string_view factor :
         absl::StrSplit(part.substr(colon + 1), ',')) {
      COHORT_RETURN_IF_ERROR(
          ReadFactor(absl::StripAsciiWhitespace(factor), group));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

absl::Status ApplyGroups(const std::vector<ParameterGroup>& groups,
                         ModelLayout& layout) {
  for (const ParameterGroup& group : groups) {
    COHORT_RETURN_IF_ERROR(
        CheckPatternsMatch("groups", {group.pattern}, layout));
    for (ParameterSpec& parameter : layout.parameters) {
      if (MatchesPattern(group.pattern, parameter.name)) {
        Apply(group, parameter);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace cohort
