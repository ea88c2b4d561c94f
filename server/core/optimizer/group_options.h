#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/model_layout.h"
#include "common/push.h"
#include "server/core/settings/options.h"

namespace cohort {

// The optimizer of one step: the options in force, but for the numbers that the
// program has changed for some groups of parameters.
class GroupOptions {
 public:
  // `numbers` must have passed CheckGroupNumbers.
  GroupOptions(OptimizerOptions options,
               const std::vector<GroupNumber>& numbers);

  const OptimizerOptions& options() const { return options_; }
  const OptimizerNumbers& NumbersOf(const ParameterSpec& parameter) const;
  // Weight decay of `parameter`; 0 if it is exempt.
  double DecayOf(const ParameterSpec& parameter) const;

 private:
  struct Group {
    OptimizerNumbers numbers;
    std::optional<double> weight_decay;
  };

  OptimizerOptions options_;
  // Those with changed numbers, by ParameterSpec::rate_group.
  std::map<int32_t, Group> changed_;
};

// `numbers` must ascend by group and name.
// Errors: InvalidArgument: another order, a group outside 0 to `groups` - 1, a
// number that the rule does not read, that enters with its value of earlier
// steps, or that decides which slots there are, or a value outside the limits
// of its setting.
absl::Status CheckGroupNumbers(const std::vector<GroupNumber>& numbers,
                               const OptimizerOptions& options, int32_t groups);

}  // namespace cohort
