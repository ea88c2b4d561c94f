#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cohort {

// The values that a flag takes, as far as they follow from its text
// alone. The default takes any value of the flag's type.
//
// Built by the functions below: AtLeast(0).Or("auto").
struct FlagLimits {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  // The bound itself is not taken.
  bool above_least = false;
  bool below_most = false;
  // Words that are taken. With numeric bounds or `list` they stand beside
  // those; otherwise the value is one of them.
  std::vector<absl::string_view> words = {};
  // Entries of a list separated by commas, each one of these.
  std::vector<absl::string_view> entries = {};

  // The same limits, with one more word that is taken as it stands.
  FlagLimits Or(absl::string_view word) const;

  // True if the value is a number, or a duration in seconds, with bounds.
  bool bounded() const;
  // "1 to 4096"; "auto, or 0 or more"; "one of sync, async". Empty: anything.
  std::string ToString() const;
  // False if `value` is outside. A bounded value that is neither number,
  // duration nor word is left to the flag's own parser.
  bool Contains(absl::string_view value) const;
  // Whether `value` is within the bounds, which NaN never is.
  bool Contains(double value) const;
};

// All bounds are inclusive but for Above's and Below's, and durations are in
// seconds.
FlagLimits AnyValue();
FlagLimits AtLeast(double least);
FlagLimits Between(double least, double most);
FlagLimits Above(double least);
FlagLimits AboveUpTo(double least, double most);
// `least` or more, and below `most`.
FlagLimits Below(double least, double most);
FlagLimits OneOf(std::vector<absl::string_view> words);
FlagLimits ListOf(std::vector<absl::string_view> entries);

}  // namespace cohort
