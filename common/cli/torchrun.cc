#include "common/cli/torchrun.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/cli/environment.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::StatusOr<int32_t> NumberIn(absl::string_view name,
                                 absl::string_view text) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": got '", text, "', want a number of at least 0"));
  }
  return number;
}

}  // namespace

absl::StatusOr<std::optional<int32_t>> RankFromTorchrun(
    absl::Span<const std::string> environment) {
  const absl::string_view rank = ValueIn(environment, "RANK");
  const absl::string_view size = ValueIn(environment, "WORLD_SIZE");
  if (rank.empty() || size.empty() ||
      ValueIn(environment, "MASTER_ADDR").empty()) {
    return std::nullopt;
  }
  COHORT_ASSIGN_OR_RETURN(const int32_t number, NumberIn("RANK", rank));
  COHORT_ASSIGN_OR_RETURN(const int32_t count, NumberIn("WORLD_SIZE", size));
  if (number >= count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RANK: got ", number, ", want less than WORLD_SIZE, ", count));
  }
  return number;
}

}  // namespace cohort
