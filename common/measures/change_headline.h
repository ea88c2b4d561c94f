#pragma once

#include <map>
#include <string>

namespace cohort {

// Describes a change of a run's settings in a few words, for progress and
// cohortctl: "sync -> async, local normalisation, learning_rate 0.1 -> 0.01".
// `before` has the values that `changed` replaces, by name. If it has all
// settings, the text also mentions normalisation that follows the aggregation.
std::string ChangeHeadline(const std::map<std::string, std::string>& before,
                           const std::map<std::string, std::string>& changed);

}  // namespace cohort
