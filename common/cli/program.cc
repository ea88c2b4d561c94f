#include "common/cli/program.h"

#include <algorithm>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/build_info.h"
#include "common/cli/environment.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Checks the flags in `given`.
absl::Status CheckAllLimits(const FlagTable& flags,
                            const std::set<std::string>& given) {
  for (const std::string& name : given) {
    const FlagInfo* flag = FindFlag(flags, name);
    // Flags of libraries have no row.
    if (flag == nullptr) continue;
    COHORT_RETURN_IF_ERROR(
        CheckLimits(*flag, absl::FindCommandLineFlag(name)->CurrentValue(),
                    absl::StrCat("--", name)));
  }
  return absl::OkStatus();
}

absl::Status SetFlagsWithEnvironment(const Program& program,
                                     const ProgramIo& io,
                                     std::set<std::string>& given) {
  COHORT_RETURN_IF_ERROR(
      SetFlagsFromEnvironment(io.environment, program.flags, given));
  return CheckAllLimits(program.flags, given);
}

// Prints the error about wrong flags on `err`.
ExitCode Refuse(absl::string_view name, const absl::Status& status,
                const ProgramIo& io) {
  const ExitCode code = ExitCodeOf(status);
  io.err << name << ": " << status.message() << '\n';
  if (code == kExitUsage) io.err << name << " --help lists all flags\n";
  io.err << std::flush;
  return code;
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
  const absl::StatusOr<HelpRequest> help = SetFlags(arguments, &set);
  if (!help.ok()) return Refuse(name, help.status(), io);
  if (help->asked) {
    const absl::StatusOr<std::string> text =
        HelpText(program.text, program.flags, help->subject);
    if (!text.ok()) return Refuse(name, text.status(), io);
    io.out << *text << std::flush;
    return kExitOk;
  }
  const absl::Status status = SetFlagsWithEnvironment(program, io, set);
  if (!status.ok()) return Refuse(name, status, io);
  if (given != nullptr) given->merge(set);
  return std::nullopt;
}

}  // namespace cohort
