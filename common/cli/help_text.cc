#include "common/cli/help_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace cohort {
namespace {

constexpr size_t kColumns = 78;

// `text` wrapped at kColumns, with `indent` before each line.
std::string Wrapped(absl::string_view text, absl::string_view indent) {
  std::string lines;
  size_t column = kColumns;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column + 1 + word.size() > kColumns) {
      absl::StrAppend(&lines, lines.empty() ? "" : "\n", indent, word);
      column = indent.size() + word.size();
      continue;
    }
    absl::StrAppend(&lines, " ", word);
    column += 1 + word.size();
  }
  return absl::StrCat(lines, "\n");
}

// "1 to 4096; can be changed live".
std::string Remarks(const FlagInfo& flag) {
  std::vector<std::string> remarks;
  if (std::string limits = flag.limits.ToString(); !limits.empty()) {
    remarks.push_back(std::move(limits));
  }
  if (flag.is_setting()) remarks.emplace_back("can be changed live");
  return absl::StrJoin(remarks, "; ");
}

std::string FlagText(const FlagInfo& flag) {
  const std::string remarks = Remarks(flag);
  return absl::StrCat(
      "  --", flag.name, "=", flag.default_text, "\n",
      Wrapped(remarks.empty() ? flag.help
                              : absl::StrCat(flag.help, " (", remarks, ")"),
              "      "));
}

}  // namespace

absl::StatusOr<std::string> HelpText(const ProgramText& program,
                                     absl::Span<const FlagInfo> flags,
                                     absl::string_view subject) {
  const std::string subjects = absl::StrJoin(SubjectsOf(flags), ", ");
  std::string text =
      absl::StrCat(program.name, ": ", program.summary, "\n\nExamples:\n");
  for (absl::string_view example : program.examples) {
    absl::StrAppend(&text, "  ", example, "\n");
  }
  absl::StrAppend(&text, "\n",
                  Wrapped(absl::StrCat("Flags with their defaults. "
                                       "--help=SUBJECT shows those of one "
                                       "subject: ",
                                       subjects, "."),
                          ""));
  absl::string_view heading;
  for (const FlagInfo& flag : flags) {
    if (!subject.empty() && flag.subject != subject) continue;
    if (flag.heading != heading) {
      heading = flag.heading;
      absl::StrAppend(&text, "\n", heading, " (", flag.subject, ")\n");
    }
    absl::StrAppend(&text, FlagText(flag));
  }
  if (heading.empty() && !subject.empty()) {
    return absl::NotFoundError(absl::StrCat("--help: got subject '", subject,
                                            "', want one of ", subjects));
  }
  return text;
}

}  // namespace cohort
