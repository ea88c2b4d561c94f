#include "server/core/statistics/call_names.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {
namespace {

// "the backward pass of ", and which one if it is not the first.
std::string PassText(const CallPlace& place) {
  if (place.phase == ReducePhase::kForward) return "";
  if (place.path.empty()) return "the backward pass of ";
  const int32_t visit = place.path.front();
  const bool of_script = visit % 2 == 1;
  const bool recorded = visit / 2 % 2 == 1;
  std::string text =
      absl::StrCat("visit ", visit / 4,
                   of_script ? " by a gradient that the script takes"
                             : " of the backward pass",
                   recorded ? ", with create_graph=True, of " : " of ");
  if (place.path.size() == 1) return text;
  return absl::StrCat("derivative ", absl::StrJoin(place.path, "."), " of ");
}

}  // namespace

std::string CallNameOf(const CallPlace& place,
                       const std::vector<BatchNormSpec>& layers) {
  const auto layer = static_cast<size_t>(place.layer);
  if (place.layer < 0 || layer >= layers.size()) return place.site;
  if (place.site.empty()) return layers[layer].name;
  return absl::StrCat(layers[layer].name, " (", place.site, ")");
}

std::string CallTextOf(const CallPlace& place,
                       const std::vector<BatchNormSpec>& layers) {
  std::string text = absl::StrCat(PassText(place), "call ", place.call, " of ",
                                  CallNameOf(place, layers));
  if (place.part > 0) absl::StrAppend(&text, " in part ", place.part);
  return text;
}

}  // namespace cohort
