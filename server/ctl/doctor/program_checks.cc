#include "server/ctl/doctor/program_checks.h"

#include <unistd.h>

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/ctl/cluster/child_process.h"

namespace cohort {

InstalledProgram ReadProgram(const std::string& folder, const std::string& name,
                             absl::Duration timeout) {
  InstalledProgram program{.name = name};
  const std::string path = absl::StrCat(folder, "/", name);
  if (access(path.c_str(), X_OK) != 0) return program;
  const absl::StatusOr<std::unique_ptr<ChildProcess>> child =
      ChildProcess::Start({path, "--version"});
  if (!child.ok()) {
    program.problem = std::string(child.status().message());
    return program;
  }
  std::string first;
  const auto read = [&first](absl::string_view line) {
    if (first.empty()) first = std::string(line);
  };
  const std::optional<ProcessEnd> end = (*child)->AwaitEnd(timeout, read);
  if (!end.has_value()) {
    program.problem = absl::StrCat("gave no --version within ",
                                   absl::FormatDuration(timeout));
  } else if (end->code != 0) {
    program.problem = absl::StrCat("--version ", end->Text(),
                                   first.empty() ? "" : ": ", first);
  } else {
    program.build = std::string(absl::StripPrefix(first, name + " "));
  }
  return program;
}

Check CheckPrograms(absl::string_view own,
                    absl::Span<const InstalledProgram> programs) {
  Check check{.name = "programs", .found = absl::StrCat("cohortctl is ", own)};
  bool runs = true;
  for (const InstalledProgram& program : programs) {
    absl::StrAppend(&check.found, "; ", program.name, " ");
    if (!program.problem.empty()) {
      absl::StrAppend(&check.found, program.problem);
      runs = false;
    } else if (program.build.empty()) {
      absl::StrAppend(&check.found, "is not there");
    } else {
      absl::StrAppend(&check.found, "is ", program.build);
      if (program.build != own) check.result = Check::Result::kWarning;
    }
  }
  if (check.result == Check::Result::kWarning) {
    check.fix =
        "install one build of all programs: an older one ignores settings that "
        "it does not know";
  }
  if (!runs) {
    check.result = Check::Result::kWarning;
    check.fix =
        "start the program by hand to see what it lacks, such as a library";
  }
  return check;
}

}  // namespace cohort
