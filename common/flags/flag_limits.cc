#include "common/flags/flag_limits.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace cohort {
namespace {

bool Holds(const std::vector<absl::string_view>& words,
           absl::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::optional<double> NumberIn(absl::string_view value) {
  double number = 0;
  if (absl::SimpleAtod(value, &number)) return number;
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration)) return std::nullopt;
  return absl::ToDoubleSeconds(duration);
}

// Whole numbers without an exponent: "1048576".
std::string NumberText(double value) { return absl::StrFormat("%.16g", value); }

std::string BoundsText(const FlagLimits& limits) {
  const bool has_most = std::isfinite(limits.most);
  if (limits.above_least) {
    return absl::StrCat("above ", NumberText(limits.least),
                        has_most ? ", up to " : "",
                        has_most ? NumberText(limits.most) : "");
  }
  if (!has_most) return absl::StrCat(NumberText(limits.least), " or more");
  const std::string most = NumberText(limits.most);
  return limits.below_most
             ? absl::StrCat("in [", NumberText(limits.least), ", ", most, ")")
             : absl::StrCat(NumberText(limits.least), " to ", most);
}

}  // namespace

FlagLimits FlagLimits::Or(absl::string_view word) const {
  FlagLimits limits = *this;
  limits.words.push_back(word);
  return limits;
}

bool FlagLimits::bounded() const {
  return std::isfinite(least) || std::isfinite(most);
}

std::string FlagLimits::ToString() const {
  const std::string names = absl::StrJoin(words, ", ");
  std::string others;
  if (!entries.empty()) {
    others = absl::StrCat("a list of ", absl::StrJoin(entries, ", "));
  } else if (bounded()) {
    others = BoundsText(*this);
  }
  if (words.empty()) return others;
  if (others.empty()) return absl::StrCat("one of ", names);
  return absl::StrCat(names, ", or ", others);
}

bool FlagLimits::Contains(absl::string_view value) const {
  if (Holds(words, value)) return true;
  if (!entries.empty()) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(value, ',', absl::SkipEmpty());
    return std::all_of(
        parts.begin(), parts.end(),
        [this](absl::string_view part) { return Holds(entries, part); });
  }
  if (!bounded()) return words.empty();
  const std::optional<double> number = NumberIn(value);
  return !number.has_value() || Contains(*number);
}

bool FlagLimits::Contains(double value) const {
  return (above_least ? value > least : value >= least) &&
         (below_most ? value < most : value <= most);
}

FlagLimits AnyValue() { return {}; }

FlagLimits AtLeast(double least) { return {.least = least}; }

FlagLimits Between(double least, double most) {
  return {.least = least, .most = most};
}

FlagLimits Above(double least) { return {.least = least, .above_least = true}; }

FlagLimits AboveUpTo(double least, double most) {
  return {.least = least, .most = most, .above_least = true};
}

FlagLimits Below(double least, double most) {
  return {.least = least, .most = most, .below_most = true};
}

FlagLimits OneOf(std::vector<absl::string_view> words) {
  return {.words = std::move(words)};
}

FlagLimits ListOf(std::vector<absl::string_view> entries) {
  return {.entries = std::move(entries)};
}

}  // namespace cohort
