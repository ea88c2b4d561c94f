#include "common/flags/flag_table.h"

#include <algorithm>
#include <type_traits>

#include "absl/flags/marshalling.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/limits.h"
#include "common/optimizers.h"

namespace cohort {
namespace {

struct Subject {
  absl::string_view name;
  absl::string_view heading;
};

template <typename T>
constexpr absl::string_view TypeName() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_integral_v<T>) return "whole number";
  if constexpr (std::is_floating_point_v<T>) return "number";
  if constexpr (std::is_same_v<T, absl::Duration>) return "duration";
  return "text";
}

template <typename T>
std::string DefaultText(const T& value) {
  if constexpr (std::is_same_v<T, absl::Duration>) {
    return absl::FormatDuration(value);
  } else {
    return absl::UnparseFlag(value);
  }
}

// The type of the value is given: 5 is an int, but may be the default of a
// double.
template <typename T>
FlagInfo Row(const Subject& subject, absl::string_view name,
             const std::type_identity_t<T>& default_value,
             const FlagLimits& limits, FlagChange change,
             absl::string_view help) {
  return {.name = name,
          .type = TypeName<T>(),
          .default_text = DefaultText<T>(default_value),
          .limits = limits,
          .change = change,
          .subject = subject.name,
          .heading = subject.heading,
          .help = help};
}

#define COHORT_FLAG_SUBJECT(name, heading) subject = {#name, heading};
#define COHORT_FLAG(type, name, default_value, limits, help)       \
  table.push_back(Row<type>(subject, #name, default_value, limits, \
                            FlagChange::kAtStart, help));
#define COHORT_SETTING(type, name, member, value, limits, change, help) \
  table.push_back(                                                      \
      Row<type>(subject, #name, value, limits, FlagChange::change, help));
#define COHORT_TEXT_SETTING(kind, ...) COHORT_SETTING(std::string, __VA_ARGS__)

// Tables, not logic.
// NOLINTBEGIN(readability-function-size)
FlagTable MakeServerFlagTable() {
  FlagTable table;
  Subject subject;
#include "common/flags/server_flags.inc"
  return table;
}

FlagTable MakeWorkerFlagTable() {
  FlagTable table;
  Subject subject;
#include "common/flags/worker_flags.inc"
  return table;
}
// NOLINTEND(readability-function-size)

#undef COHORT_FLAG_SUBJECT
#undef COHORT_FLAG
#undef COHORT_SETTING
#undef COHORT_TEXT_SETTING

}  // namespace

// Both are leaked, so that no order of destruction matters.
const FlagTable& ServerFlagTable() {
  static const FlagTable& table = *new FlagTable(MakeServerFlagTable());
  return table;
}

const FlagTable& WorkerFlagTable() {
  static const FlagTable& table = *new FlagTable(MakeWorkerFlagTable());
  return table;
}

const FlagInfo* FindFlag(absl::Span<const FlagInfo> flags,
                         absl::string_view name) {
  const auto found =
      std::find_if(flags.begin(), flags.end(), [name](const FlagInfo& flag) {
        absl::string_view positive = name;
        return flag.name == name ||
               (flag.is_switch() && absl::ConsumePrefix(&positive, "no") &&
                flag.name == positive);
      });
  return found == flags.end() ? nullptr : &*found;
}

bool IsForWorkersOnly(absl::string_view name) {
  return FindFlag(WorkerFlagTable(), name) != nullptr &&
         FindFlag(ServerFlagTable(), name) == nullptr;
}

std::vector<absl::string_view> SubjectsOf(absl::Span<const FlagInfo> flags) {
  std::vector<absl::string_view> subjects;
  for (const FlagInfo& flag : flags) {
    if (std::find(subjects.begin(), subjects.end(), flag.subject) ==
        subjects.end()) {
      subjects.push_back(flag.subject);
    }
  }
  return subjects;
}

absl::Status CheckLimits(const FlagInfo& flag, absl::string_view value,
                         absl::string_view spelled) {
  if (flag.limits.Contains(value)) return absl::OkStatus();
  const absl::string_view quote = flag.limits.bounded() ? "" : "'";
  return absl::InvalidArgumentError(absl::StrCat(spelled, ": got ", quote,
                                                 value, quote, ", want ",
                                                 flag.limits.ToString()));
}

}  // namespace cohort
