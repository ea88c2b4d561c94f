#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// One entry of a slice: an index, or a range `begin:end`. Negative values
// count from the end of the axis.
struct AxisSlice {
  bool is_index = false;
  std::optional<int64_t> begin;
  std::optional<int64_t> end;

  friend bool operator==(const AxisSlice&, const AxisSlice&) = default;
};

// Freezes the parameters that `pattern` matches, or the same slice of each.
struct FreezeSpec {
  std::string pattern;
  // One entry an axis; axes that are missing at the end are whole.
  std::vector<AxisSlice> axes;

  friend bool operator==(const FreezeSpec&, const FreezeSpec&) = default;
};

// Reads "layer4.*" or "conv2.weight[:,:,29,13]": a pattern of parameter names
// (see MatchesPattern) and basic indexing as in NumPy: integers and ranges
// a:b, without steps, ellipses and lists.
// Errors: InvalidArgument naming --freeze, the text and what is wrong.
absl::StatusOr<FreezeSpec> ParseFreezeSpec(absl::string_view text);

}  // namespace cohort
