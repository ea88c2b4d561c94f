#include "common/build_info.h"

#include "absl/strings/str_cat.h"

namespace cohort {

std::string BuildText() {
  const BuildInfo info = GetBuildInfo();
  return absl::StrCat(info.version, " (commit ", info.commit, ")");
}

std::string VersionText(absl::string_view program) {
  return absl::StrCat(program, " ", BuildText());
}

}  // namespace cohort
