#pragma once

#include <optional>
#include <ostream>
#include <set>
#include <string>

#include "absl/types/span.h"
#include "common/cli/command_line.h"
#include "common/cli/help_text.h"
#include "common/flags/flag_table.h"

namespace cohort {

// A program whose flags are ABSL_FLAGs, one for each row of a table.
struct Program {
  ProgramText text;
  const FlagTable& flags;
};

// A program's output streams and environment. main and tests each make their
// own.
struct ProgramIo {
  std::ostream& out;
  std::ostream& err;
  // "NAME=value" each.
  absl::Span<const std::string> environment;
};

// Must be the first call of main. Sets the program's flags from the command
// line and from variables COHORT_NAME (see SetFlagsFromEnvironment), in this
// order of precedence; checks each against the limits in its row; answers
// --help and --version. The names of the flags that were set are added to
// `given`.
//
// Returns the exit code if the process must end now: help or version is on
// `out`, or an error on `err`. Help and version do not depend on the
// environment.
std::optional<ExitCode> ReadFlags(const Program& program,
                                  absl::Span<char* const> arguments,
                                  const ProgramIo& io,
                                  std::set<std::string>* given = nullptr);

}  // namespace cohort
