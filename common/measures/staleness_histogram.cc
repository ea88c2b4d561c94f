#include "common/measures/staleness_histogram.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cohort {
namespace {

// The first value of the range: 0, 1, 2-3, 4-7, ...
int64_t RangeOf(int64_t staleness) {
  int64_t first = staleness > 0 ? 1 : 0;
  while (2 * first <= staleness && first > 0) first *= 2;
  return first;
}

std::string RangeText(int64_t first) {
  if (first >= kStalenessCountedMax) return absl::StrCat(first, " or more");
  if (first < 2) return absl::StrCat(first);
  return absl::StrCat(first, "-", 2 * first - 1);
}

}  // namespace

std::string StalenessText(const StalenessCounts& counts) {
  std::map<int64_t, int64_t> ranges;
  int64_t total = 0;
  for (const auto& [staleness, count] : counts) {
    ranges[RangeOf(staleness)] += count;
    total += count;
  }
  std::string text;
  for (const auto& [first, count] : ranges) {
    absl::StrAppend(
        &text, text.empty() ? "" : ", ", RangeText(first), ": ",
        absl::StrFormat("%.3g %%", 100.0 * static_cast<double>(count) /
                                       static_cast<double>(total)));
  }
  return text;
}

}  // namespace cohort
