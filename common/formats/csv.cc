#include "common/formats/csv.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace cohort {

std::vector<std::string> CsvFields(absl::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      // A doubled quote closes and reopens the field; no field that we read
      // needs the quote.
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back().push_back(c);
    }
  }
  return fields;
}

std::string CsvQuoted(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace cohort
