#include "server/core/membership/initial_values.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace cohort {

absl::Status CheckInitialValues(const ModelLayout& layout,
                                const Partition& partition,
                                absl::Span<const float> values) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) {
    return !std::isfinite(value);
  });
  if (bad == values.end()) return absl::OkStatus();
  int64_t at = bad - values.begin();
  for (const Slice& slice : partition.slices) {
    if (at < slice.count) {
      return absl::InvalidArgumentError(absl::StrCat(
          layout.parameters[static_cast<size_t>(slice.parameter)].name,
          ": got the initial value ", *bad, " at element ", slice.offset + at,
          ", want finite values"));
    }
    at -= slice.count;
  }
  return absl::InvalidArgumentError(
      "got more values than the partition has elements");
}

}  // namespace cohort
