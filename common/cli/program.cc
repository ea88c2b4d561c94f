#include "common/cli/program.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/build_info.h"
#include "common/cli/environment.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status SetFlagsFromTfConfig(absl::string_view text, TaskRole role,
                                  std::set<std::string>& given) {
  using Flags = std::map<std::string, std::string>;
  COHORT_ASSIGN_OR_RETURN(const Flags flags, FlagsFromTfConfig(text, role));
  for (const auto& [name, value] : flags) {
    if (given.contains(name)) continue;
    COHORT_RETURN_IF_ERROR(SetFlag(name, value, "TF_CONFIG"));
    given.insert(name);
  }
  return absl::OkStatus();
}

absl::Status SetFlagsFromSurroundings(const Program& program,
                                      const ProgramIo& io,
                                      std::set<std::string>& given) {
  COHORT_RETURN_IF_ERROR(
      SetFlagsFromEnvironment(io.environment, program.source, given));
  const absl::string_view tf_config = ValueIn(io.environment, "TF_CONFIG");
  if (tf_config.empty()) return absl::OkStatus();
  return SetFlagsFromTfConfig(tf_config, program.role, given);
}

}  // namespace

std::optional<ExitCode> ReadFlags(const Program& program,
                                  absl::Span<char* const> arguments,
                                  const ProgramIo& io,
                                  std::set<std::string>* given) {
  const absl::string_view name = program.text.name;
  const auto is_version = [](absl::string_view argument) {
    return argument == "--version";
  };
  if (std::any_of(arguments.begin(), arguments.end(), is_version)) {
    io.out << VersionText(name) << std::endl;
    return kExitOk;
  }
  std::set<std::string> set;
  const absl::StatusOr<bool> help = SetFlags(arguments, &set);
  if (help.ok() && *help) {
    io.out << HelpText(program.text, program.source) << std::flush;
    return kExitOk;
  }
  const absl::Status status =
      help.ok() ? SetFlagsFromSurroundings(program, io, set) : help.status();
  if (!status.ok()) {
    io.err << name << ": " << status.message() << '\n';
    if (ExitCodeOf(status) == kExitUsage) {
      io.err << name << " --help lists all flags\n";
    }
    io.err << std::flush;
    return ExitCodeOf(status);
  }
  if (given != nullptr) given->merge(set);
  return std::nullopt;
}

}  // namespace cohort
