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
enum Column { kSeconds, kKind, kAccuracy, kMiou, kColumns };
constexpr std::array<const char*, kColumns> kColumnNames = {
    "seconds", "bn_statistics", "test_accuracy", "test_miou"};

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
  COHORT_ASSIGN_OR_RETURN(const double share,
                          NumberAt(history, row, dense ? kMiou : kAccuracy));
  result.percent[kind] = 100 * share;
  return absl::OkStatus();
}

}  // namespace

double RunResult::Gap(const std::string& kind) const {
  return percent.at(kOwnBatch) - percent.at(kind);
}

absl::StatusOr<RunResult> ParseRunResult(const std::vector<std::string>& kinds,
                                         absl::string_view history) {
  COHORT_ASSIGN_OR_RETURN(const History parsed, ParseHistory(history));
  RunResult result;
  for (size_t row = 0; row < parsed.rows.size(); ++row) {
    COHORT_RETURN_IF_ERROR(AddRow(parsed, row, result));
  }
  std::vector<std::string> wanted = kinds;
  wanted.emplace_back(kOwnBatch);
  for (const std::string& kind : wanted) {
    if (result.percent.contains(kind)) continue;
    return absl::DataLossError(absl::StrCat(
        "history.csv has no evaluation with ", kind,
        " statistics: a study needs test images, and a model with batch norm"));
  }
  return result;
}

absl::StatusOr<RunResult> ReadRunResult(const std::vector<std::string>& kinds,
                                        const std::string& folder) {
  COHORT_ASSIGN_OR_RETURN(
      const ByteRope history,
      RealFileSystem().ReadFile(absl::StrCat(folder, "/history.csv"),
                                kAnyFileSize));
  return ParseRunResult(kinds, history.ToString());
}

}  // namespace cohort
