#include "server/ctl/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cohort {

std::string Table::ToString(bool bold) const {
  std::vector<size_t> widths(rows_.front().size());
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      absl::StrAppend(&line, row[i],
                      std::string(widths[i] - row[i].size() + 2, ' '));
    }
    const absl::string_view trimmed = absl::StripTrailingAsciiWhitespace(line);
    absl::StrAppend(&text, Bold(trimmed, bold && &row == &rows_.front()), "\n");
  }
  return text;
}

std::string Bold(absl::string_view text, bool bold) {
  return bold ? absl::StrCat("\x1b[1m", text, "\x1b[0m") : std::string(text);
}

}  // namespace cohort
