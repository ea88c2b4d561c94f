#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model_layout.h"

namespace cohort {

// Parameters with another learning rate or weight decay, as factors of
// the run's.
struct ParameterGroup {
  // A name or pattern; see MatchesPattern.
  std::string pattern;
  // Absent: as without the group.
  std::optional<double> rate;
  // 0 exempts the parameter from decay; above 0 it decays even if it is exempt
  // by default. Absent: as without the group.
  std::optional<double> decay;
};

// Reads --groups, such as "head.*:lr=10,decay=0; *.bias:decay=0".
// Errors: InvalidArgument naming the part that cannot be read.
absl::StatusOr<std::vector<ParameterGroup>> ParseGroups(absl::string_view text);

// Sets the multipliers of the parameters that a group matches; of several
// groups the last one applies.
// Errors: FailedPrecondition: a pattern matches no parameter (with the nearest
//   names).
absl::Status ApplyGroups(const std::vector<ParameterGroup>& groups,
                         ModelLayout& layout);

}  // namespace cohort
