#include "server/records/recorded_policy.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/byte_rope.h"
#include "common/formats/csv.h"
#include "common/formats/file_system.h"
#include "common/limits.h"
#include "common/log/log.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int64_t kPolicyBytesMax = int64_t{64} << 20;
constexpr absl::string_view kPolicyColumns =
    "policy_epoch,version,samples,seconds,changes,";

bool IsSetting(absl::string_view name) {
  const std::vector<std::string> names = SettingNames();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "a=1 b=2"; a value may contain blanks.
absl::StatusOr<SettingValues> ReadChanges(absl::string_view text) {
  SettingValues values;
  std::string* last = nullptr;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (IsSetting(parts.first)) {
      last = &values[std::string(parts.first)];
      *last = std::string(parts.second);
    } else if (last != nullptr) {
      absl::StrAppend(last, " ", word);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("got '", word, "', want NAME=VALUE of a setting"));
    }
  }
  CoordinatorOptions options;
  COHORT_RETURN_IF_ERROR(SetSettings(values, options));
  return values;
}

absl::StatusOr<PlannedChange> ReadRow(absl::string_view row) {
  const std::vector<std::string> fields = CsvFields(row);
  int64_t version = 0;
  if (fields.size() < 5 || !absl::SimpleAtoi(fields[1], &version) ||
      version < 0 || version > limits::kStepsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("got '", row, "', want a version and changes"));
  }
  PlannedChange change{.version = Version(version)};
  COHORT_ASSIGN_OR_RETURN(change.values, ReadChanges(fields[4]));
  return change;
}

}  // namespace

absl::StatusOr<RecordedPolicy> ReadPolicyTable(const std::string& path) {
  const absl::StatusOr<ByteRope> content =
      RealFileSystem().ReadFile(path, kPolicyBytesMax);
  if (!content.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--policy_from: ", content.status().message()));
  }
  const std::string text = content->ToString();
  const std::vector<absl::string_view> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.size() < 2 || !absl::StartsWith(lines[0], kPolicyColumns)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--policy_from: ", path,
                     ": want the policy.csv of a run, with columns ",
                     kPolicyColumns, "..., and a row"));
  }
  RecordedPolicy recorded;
  for (size_t i = 1; i < lines.size(); ++i) {
    absl::StatusOr<PlannedChange> change = ReadRow(lines[i]);
    if (!change.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--policy_from: ", path, ", line ", i + 1, ": ",
                       change.status().message()));
    }
    if (i == 1) {
      recorded.start = std::move(change->values);
      continue;
    }
    if (!recorded.changes.empty() &&
        change->version < recorded.changes.back().version) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--policy_from: ", path, ", line ", i + 1, ": got version ",
          change->version.value(), " after ",
          recorded.changes.back().version.value(), ", want them to rise"));
    }
    recorded.changes.push_back(*std::move(change));
  }
  return recorded;
}

absl::StatusOr<std::vector<PlannedChange>> PlanRecorded(
    RecordedPolicy recorded, const CoordinatorOptions& options) {
  CoordinatorOptions before = options;
  COHORT_RETURN_IF_ERROR(SetSettings(recorded.start, before));
  const std::string differs = ChangeText(before, options);
  if (!differs.empty()) {
    Log(LogLevel::kWarning,
        absl::StrCat("--policy_from: the recorded run started with other "
                     "settings, so results may differ: ",
                     differs));
  }
  CoordinatorOptions at = options;
  for (const PlannedChange& change : recorded.changes) {
    COHORT_RETURN_IF_ERROR(SetSettings(change.values, at));
    TakeImplied(at);
    const absl::Status fits = Validate(at);
    if (fits.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--policy_from: the change at step ", change.version.value(),
        " does not fit the flags: ", fits.message()));
  }
  return std::move(recorded.changes);
}

}  // namespace cohort
