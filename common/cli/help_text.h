#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/flags/flag_table.h"

namespace cohort {

struct ProgramText {
  absl::string_view name;
  // One sentence.
  absl::string_view summary;
  // Command lines that work as given.
  std::vector<absl::string_view> examples;
};

// The answer to --help: examples, then the flags by subject, or only the flags
// of `subject` if one is given.
// Errors: NotFound: no flag has that subject; the message lists the subjects.
absl::StatusOr<std::string> HelpText(const ProgramText& program,
                                     absl::Span<const FlagInfo> flags,
                                     absl::string_view subject = "");

}  // namespace cohort
