#pragma once

#include <optional>
#include <ostream>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/cli/command_line.h"
#include "common/cli/tf_config.h"

namespace cohort {

// A program whose flags are ABSL_FLAGs.
struct Program {
  ProgramText text;
  // Part of the path of the source file that defines its flags.
  absl::string_view source;
  // Which part of a cluster it is, for TF_CONFIG.
  TaskRole role = TaskRole::kServer;
};

// Where a program writes and what surrounds it; main and tests each make their
// own.
struct ProgramIo {
  std::ostream& out;
  std::ostream& err;
  // "NAME=value" each.
  absl::Span<const std::string> environment;
};

// What main does first: sets the program's flags from the command line, from
// variables COHORT_NAME (see SetFlagsFromEnvironment) and from TF_CONFIG (see
// FlagsFromTfConfig), of which each yields to those before it; answers --help
// and --version. The names of the flags that were set are added to `given`.
//
// Returns the exit code if the process is to end now: help or version is on
// `out`, or an error on `err`. Help and version are to be had whatever the
// environment says.
std::optional<ExitCode> ReadFlags(const Program& program,
                                  absl::Span<char* const> arguments,
                                  const ProgramIo& io,
                                  std::set<std::string>* given = nullptr);

}  // namespace cohort
