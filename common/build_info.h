#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// The version and commit that this program was built from.
struct BuildInfo {
  // The release, such as "0.1.0".
  absl::string_view version;
  // Abbreviated commit, with "-dirty" if the tree had changes; "unknown" if the
  // program was built outside of a checkout without naming a commit.
  absl::string_view commit;
};

BuildInfo GetBuildInfo();

// "0.1.0 (commit 0f79f3a0b1c2)".
std::string BuildText();

// "cohort-server 0.1.0 (commit 0f79f3a0b1c2)": what --version prints.
std::string VersionText(absl::string_view program);

}  // namespace cohort
