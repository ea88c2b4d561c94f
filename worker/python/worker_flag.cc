#include "worker/python/worker_flag.h"

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/flags/flag_table.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

template <typename T>
absl::StatusOr<T> Parsed(const FlagInfo& flag, absl::string_view spelled,
                         absl::string_view text) {
  T value{};
  std::string error;
  if (absl::ParseFlag(text, &value, &error)) return value;
  return absl::InvalidArgumentError(absl::StrCat(
      spelled, ": got '", text, "', want ",
      flag.type == "duration" ? "a duration such as 90s or 5m" : flag.type));
}

}  // namespace

absl::StatusOr<WorkerFlagValue> ParseWorkerFlag(absl::string_view name,
                                                absl::string_view text) {
  const FlagInfo* flag = FindFlag(WorkerFlagTable(), name);
  COHORT_CHECK(flag != nullptr, name);
  const std::string spelled =
      absl::StrCat("COHORT_", absl::AsciiStrToUpper(name));
  WorkerFlagValue value = std::string(text);
  if (flag->type == "true or false") {
    COHORT_ASSIGN_OR_RETURN(value, Parsed<bool>(*flag, spelled, text));
  } else if (flag->type == "whole number") {
    COHORT_ASSIGN_OR_RETURN(value, Parsed<int64_t>(*flag, spelled, text));
  } else if (flag->type == "number") {
    COHORT_ASSIGN_OR_RETURN(value, Parsed<double>(*flag, spelled, text));
  } else if (flag->type == "duration") {
    COHORT_ASSIGN_OR_RETURN(const absl::Duration duration,
                            Parsed<absl::Duration>(*flag, spelled, text));
    value = absl::ToDoubleSeconds(duration);
  }
  COHORT_RETURN_IF_ERROR(CheckLimits(*flag, text, spelled));
  return value;
}

}  // namespace cohort
