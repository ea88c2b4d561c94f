#include "server/records/history_table.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/byte_rope.h"
#include "common/formats/file_system.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Some ten million rows; a larger file is not one of our tables.
constexpr int64_t kTableBytesMax = int64_t{1} << 30;

bool IsAbove(absl::string_view row, int64_t last) {
  int64_t number = 0;
  return !absl::SimpleAtoi(row.substr(0, row.find(',')), &number) ||
         number > last;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CutTable(const std::string& path,
                                                  int64_t last) {
  const absl::StatusOr<ByteRope> content =
      RealFileSystem().ReadFile(path, kTableBytesMax);
  if (absl::IsNotFound(content.status())) return std::vector<std::string>();
  COHORT_RETURN_IF_ERROR(content.status());
  const std::string before = content->ToString();
  std::vector<std::string> lines = absl::StrSplit(before, '\n');
  // The text after the last newline is empty, or a line that was cut off.
  lines.pop_back();
  if (lines.empty()) lines.emplace_back();
  const std::string header = lines.front();
  lines.erase(lines.begin());
  std::erase_if(lines,
                [last](const std::string& row) { return IsAbove(row, last); });
  std::string after = header.empty() ? "" : absl::StrCat(header, "\n");
  for (const std::string& row : lines) absl::StrAppend(&after, row, "\n");
  if (after != before) {
    COHORT_RETURN_IF_ERROR(
        WriteFileAtomically(RealFileSystem(), path, kPublicFileMode, after));
  }
  return lines;
}

}  // namespace cohort
