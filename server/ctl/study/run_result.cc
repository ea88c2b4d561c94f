#include "server/ctl/study/run_result.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/byte_rope.h"
#include "common/formats/csv.h"
#include "common/formats/file_system.h"
#include "common/status_macros.h"
#include "server/ctl/study/matrix.h"

namespace cohort {
namespace {

// Columns of history.csv that are read.
enum Column { kSamples, kSeconds, kKind, kAccuracy, kMiou, kColumns };
constexpr std::array<const char*, kColumns> kColumnNames = {
    "samples", "seconds", "bn_statistics", "test_accuracy", "test_miou"};

// Rows of a CSV file, and the positions of their columns.
struct History {
  std::array<size_t, kColumns> at = {};
  std::vector<std::vector<std::string>> rows;

  const std::string& Field(size_t row, Column column) const {
    return rows[row][at[column]];
  }
};

absl::StatusOr<History> ParseHistory(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::vector<std::string> header = CsvFields(lines[0]);
  History history;
  for (size_t i = 0; i < kColumnNames.size(); ++i) {
    const auto found = std::find(header.begin(), header.end(), kColumnNames[i]);
    if (found == header.end()) {
      return absl::DataLossError(
          absl::StrCat("history.csv has no column ", kColumnNames[i]));
    }
    history.at[i] = static_cast<size_t>(found - header.begin());
  }
  // The text after the last newline is empty or a line that was cut off.
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    std::vector<std::string> fields = CsvFields(lines[i]);
    if (fields.size() != header.size()) {
      return absl::DataLossError(absl::StrCat("history.csv, line ", i + 1,
                                              ": got ", fields.size(),
                                              " fields, want ", header.size()));
    }
    history.rows.push_back(std::move(fields));
  }
  return history;
}

absl::StatusOr<double> NumberAt(const History& history, size_t row,
                                Column column) {
  double number = 0;
  if (absl::SimpleAtod(history.Field(row, column), &number)) return number;
  return absl::DataLossError(absl::StrCat(
      "history.csv, line ", row + 2, ": got '", history.Field(row, column),
      "' as ", kColumnNames[column], ", want a number"));
}

absl::Status AddRow(const History& history, size_t row, RunResult& result) {
  COHORT_ASSIGN_OR_RETURN(const double seconds,
                          NumberAt(history, row, kSeconds));
  result.seconds = std::max(result.seconds, seconds);
  const std::string& kind = history.Field(row, kKind);
  // Training rows have no kind.
  if (kind.empty()) return absl::OkStatus();
  const bool dense = !history.Field(row, kMiou).empty();
  result.measure = dense ? "mIoU" : "accuracy";
  COHORT_ASSIGN_OR_RETURN(const double samples,
                          NumberAt(history, row, kSamples));
  COHORT_ASSIGN_OR_RETURN(const double share,
                          NumberAt(history, row, dense ? kMiou : kAccuracy));
  result.curves[kind].push_back({.samples = static_cast<int64_t>(samples),
                                 .seconds = seconds,
                                 .measure = 100 * share});
  return absl::OkStatus();
}

absl::StatusOr<StalenessCounts> ParseStaleness(absl::string_view text) {
  StalenessCounts counts;
  const std::vector<absl::string_view> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(lines[i], absl::MaxSplits(',', 1));
    int64_t versions = 0;
    int64_t pushes = 0;
    if (!absl::SimpleAtoi(parts.first, &versions) ||
        !absl::SimpleAtoi(parts.second, &pushes)) {
      return absl::DataLossError(absl::StrCat("staleness.csv, line ", i + 1,
                                              ": got '", lines[i],
                                              "', want two numbers"));
    }
    counts[versions] = pushes;
  }
  return counts;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const ByteRope content,
                          RealFileSystem().ReadFile(path, kAnyFileSize));
  return content.ToString();
}

}  // namespace

double RunResult::Gap(const std::string& kind) const {
  return Final(kOwnBatch) - Final(kind);
}

std::optional<double> RunResult::SecondsTo(const std::string& kind,
                                           double target) const {
  const std::vector<CurvePoint>& curve = curves.at(kind);
  if (curve.size() < 2) return std::nullopt;
  for (const CurvePoint& point : curve) {
    if (point.measure >= target) return point.seconds;
  }
  return std::nullopt;
}

absl::StatusOr<RunResult> ParseRunResult(const std::vector<std::string>& kinds,
                                         absl::string_view history,
                                         absl::string_view staleness) {
  COHORT_ASSIGN_OR_RETURN(const History parsed, ParseHistory(history));
  RunResult result;
  for (size_t row = 0; row < parsed.rows.size(); ++row) {
    COHORT_RETURN_IF_ERROR(AddRow(parsed, row, result));
  }
  std::vector<std::string> wanted = kinds;
  wanted.emplace_back(kOwnBatch);
  for (const std::string& kind : wanted) {
    if (result.curves.contains(kind)) continue;
    return absl::DataLossError(absl::StrCat(
        "history.csv has no evaluation with ", kind,
        " statistics: a study needs test images, and a model with batch norm"));
  }
  COHORT_ASSIGN_OR_RETURN(result.staleness, ParseStaleness(staleness));
  return result;
}

absl::StatusOr<RunResult> ReadRunResult(const std::vector<std::string>& kinds,
                                        const std::string& folder) {
  COHORT_ASSIGN_OR_RETURN(const std::string history,
                          ReadText(absl::StrCat(folder, "/history.csv")));
  absl::StatusOr<std::string> staleness =
      ReadText(absl::StrCat(folder, "/staleness.csv"));
  if (absl::IsNotFound(staleness.status())) staleness = "";
  COHORT_RETURN_IF_ERROR(staleness.status());
  return ParseRunResult(kinds, history, *staleness);
}

}  // namespace cohort
