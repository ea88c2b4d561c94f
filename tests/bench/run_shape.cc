#include "tests/bench/run_shape.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace cohort::bench {

std::string ShapeText(const RunShape& shape) {
  return absl::StrCat(shape.workers, ",", shape.steps, ",", shape.channels, ",",
                      shape.calls, ",", shape.together, ",",
                      absl::StrJoin(shape.parameters, ","));
}

absl::StatusOr<RunShape> ShapeFromText(absl::string_view text) {
  std::vector<int64_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: got '", text, "', want numbers"));
    }
  }
  constexpr size_t kFixed = 5;
  if (numbers.size() <= kFixed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape: got ", numbers.size(), " numbers, want more than ", kFixed));
  }
  return RunShape{.workers = static_cast<int32_t>(numbers[0]),
                  .steps = static_cast<int32_t>(numbers[1]),
                  .channels = numbers[2],
                  .calls = static_cast<int32_t>(numbers[3]),
                  .together = static_cast<int32_t>(numbers[4]),
                  .parameters = {numbers.begin() + kFixed, numbers.end()}};
}

}  // namespace cohort::bench
