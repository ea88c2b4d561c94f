#pragma once

#include <map>
#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace cohort::bench {

// Prints the flags that `file` defines, with their defaults.
inline void PrintFlagsOf(absl::string_view file) {
  std::map<std::string, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::StrContains(flag->Filename(), file)) continue;
    flags.emplace(std::string(name.data(), name.size()), flag);
  }
  for (const auto& [name, flag] : flags) {
    absl::PrintF("  --%s=%s\n      %s\n", name, flag->DefaultValue(),
                 flag->Help());
  }
}

}  // namespace cohort::bench
