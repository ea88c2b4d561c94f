#include "server/core/settings/freeze_spec.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cohort {
namespace {

constexpr char kWanted[] =
    "a parameter name or pattern, optionally with a slice such as "
    "conv2.weight[:,0:2,-1]";

absl::Status BadSpec(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--freeze: got '", text, "' (", what, "), want ", kWanted));
}

// Absent where `text` is empty; false if it is no whole number.
bool ReadBound(absl::string_view text, std::optional<int64_t>& value) {
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return true;
  return absl::SimpleAtoi(text, &value.emplace());
}

std::optional<AxisSlice> ReadAxis(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  AxisSlice axis{.is_index = parts.size() == 1};
  if (parts.size() > 2 || !ReadBound(parts[0], axis.begin)) {
    return std::nullopt;
  }
  if (axis.is_index) {
    if (!axis.begin.has_value()) return std::nullopt;
    return axis;
  }
  if (!ReadBound(parts[1], axis.end)) return std::nullopt;
  return axis;
}

}  // namespace

absl::StatusOr<FreezeSpec> ParseFreezeSpec(absl::string_view text) {
  const size_t open = text.find('[');
  FreezeSpec spec{
      .pattern = std::string(absl::StripAsciiWhitespace(text.substr(0, open)))};
  if (spec.pattern.empty()) return BadSpec(text, "missing name");
  if (spec.pattern.find(']') != std::string::npos) {
    return BadSpec(text, "] without [");
  }
  if (open == absl::string_view::npos) return spec;
  absl::string_view inside =
      absl::StripTrailingAsciiWhitespace(text.substr(open + 1));
  if (!absl::ConsumeSuffix(&inside, "]")) {
    return BadSpec(text, "missing ] at the end");
  }
  for (absl::string_view entry : absl::StrSplit(inside, ',')) {
    const std::optional<AxisSlice> axis = ReadAxis(entry);
    if (!axis.has_value()) {
      return BadSpec(text, absl::StrCat("'", entry,
                                        "' is neither an index nor a range "
                                        "a:b"));
    }
    spec.axes.push_back(*axis);
  }
  return spec;
}

}  // namespace cohort
