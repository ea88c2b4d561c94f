#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/formats/file_system.h"
#include "server/ctl/server_target.h"

namespace cohort {

// Servers by name, as an operator keeps them in a file.
struct Contexts {
  // The one in use; empty for none.
  std::string current;
  std::map<std::string, ServerTarget> servers;
};

// The file: COHORT_CONFIG, or cohort/contexts.json in the user's configuration
// folder. Empty if the environment names neither.
std::string ContextsPath(absl::Span<const std::string> environment);

// No contexts if there is no such file.
// Errors: those of FileSystem; DataLoss: the file is not one that WriteContexts
//   writes, with what is wrong.
absl::StatusOr<Contexts> ReadContexts(FileSystem& files,
                                      const std::string& path);
// Creates the folder of the file if it is missing.
// Errors: those of FileSystem.
absl::Status WriteContexts(FileSystem& files, const std::string& path,
                           const Contexts& contexts);

// The target of the context with that name.
// Errors: NotFound, with the names that there are.
absl::StatusOr<ServerTarget> ServerOf(const Contexts& contexts,
                                      const std::string& name);

}  // namespace cohort
