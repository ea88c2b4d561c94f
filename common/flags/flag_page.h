#pragma once

#include <string>

#include "absl/types/span.h"
#include "common/flags/flag_table.h"

namespace cohort {

// A page of documentation.
struct FlagPage {
  // From the root of the source tree.
  std::string path;
  std::string markdown;
};

// server/FLAGS.md and worker/FLAGS.md, as their rows are now.
FlagPage ServerFlagPage();
FlagPage WorkerFlagPage();

// A table for each subject, in Markdown.
std::string FlagTablesMarkdown(absl::Span<const FlagInfo> flags);

}  // namespace cohort
