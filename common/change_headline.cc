#include "common/change_headline.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {

std::string ChangeHeadline(const std::map<std::string, std::string>& before,
                           const std::map<std::string, std::string>& changed) {
  const auto arrow = [&before](const auto& change) {
    const auto old = before.find(change.first);
    return absl::StrCat(old == before.end() ? "(unset)" : old->second, " -> ",
                        change.second);
  };
  // What everybody calls the policy stands first, without its name.
  std::vector<std::string> parts;
  for (const auto& change : changed) {
    if (change.first == "aggregation") {
      parts.insert(parts.begin(), arrow(change));
    } else if (change.first == "normalization") {
      parts.push_back(absl::StrCat(change.second, " normalisation"));
    } else {
      parts.push_back(absl::StrCat(change.first, " ", arrow(change)));
    }
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace cohort
