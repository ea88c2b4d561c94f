#include "common/measures/change_headline.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {
namespace {

using Settings = std::map<std::string, std::string>;

std::string ValueIn(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "" : found->second;
}

// Resolves --normalization=auto; empty if these settings are not enough.
std::string NormalizationOf(const Settings& settings) {
  const std::string value = ValueIn(settings, "normalization");
  const std::string aggregation = ValueIn(settings, "aggregation");
  if (value != "auto" || aggregation.empty()) return value;
  return aggregation == "sync" ? "global" : "local";
}

}  // namespace

std::string ChangeHeadline(const std::map<std::string, std::string>& before,
                           const std::map<std::string, std::string>& changed) {
  const auto arrow = [&before](const auto& change) {
    const auto old = before.find(change.first);
    return absl::StrCat(old == before.end() ? "(unset)" : old->second, " -> ",
                        change.second);
  };
  Settings after = changed;
  after.insert(before.begin(), before.end());
  const std::string normalization = NormalizationOf(after);
  // With auto, normalisation changes with the aggregation. A change between
  // auto and its present meaning is shown like any other setting.
  const bool other = normalization != NormalizationOf(before);
  // The policy itself comes first, without the setting's name.
  std::vector<std::string> parts;
  for (const auto& change : changed) {
    if (change.first == "aggregation") {
      parts.insert(parts.begin(), arrow(change));
    } else if (change.first != "normalization" || !other) {
      parts.push_back(absl::StrCat(change.first, " ", arrow(change)));
    }
  }
  if (other) {
    parts.push_back(absl::StrCat(normalization, " normalisation"));
  } else if (ValueIn(changed, "aggregation") == "sync" &&
             normalization == "local") {
    // A change to sync usually aims at the statistics of all workers.
    parts.emplace_back("normalization stays local");
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace cohort
