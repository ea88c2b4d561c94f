#include "server/ctl/cluster/programs.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::StatusOr<std::string> FindProgram(const std::string& folder,
                                        absl::string_view name) {
  std::string path = absl::StrCat(folder, "/", name);
  if (access(path.c_str(), X_OK) == 0) return path;
  return absl::FailedPreconditionError(absl::StrCat(
      folder, ": has no executable ", name, "\nBuild it with `cmake --build ",
      "--preset release --target cohort-server cohort-worker cohortctl`, or "
      "say "
      "where it is with --programs=DIR"));
}

// The folder of this process's own executable.
absl::StatusOr<std::string> OwnFolder() {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return self.parent_path().string();
  return absl::FailedPreconditionError(
      absl::StrCat("/proc/self/exe: ", error.message(),
                   "; want it to find cohort-server beside this program\nSay "
                   "where it is with --programs=DIR"));
}

}  // namespace

absl::StatusOr<ClusterPrograms> FindPrograms(const std::string& folder,
                                             WorkerProgram worker) {
  std::string where = folder;
  if (where.empty()) {
    COHORT_ASSIGN_OR_RETURN(where, OwnFolder());
  }
  ClusterPrograms programs;
  COHORT_ASSIGN_OR_RETURN(programs.server, FindProgram(where, "cohort-server"));
  if (worker == WorkerProgram::kCohortWorker) {
    COHORT_ASSIGN_OR_RETURN(programs.worker,
                            FindProgram(where, "cohort-worker"));
  }
  return programs;
}

}  // namespace cohort
