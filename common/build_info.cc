#include "common/build_info.h"

#include "absl/strings/str_cat.h"

namespace cohort {

std::string VersionText(absl::string_view program) {
  const BuildInfo info = GetBuildInfo();
  return absl::StrCat(program, " ", info.version, " (commit ", info.commit,
                      ")");
}

}  // namespace cohort
