#pragma once

#include <string>

namespace cohort {

// The result of one check of `cohortctl doctor`.
struct Check {
  enum class Result { kOk, kWarning, kFailed, kSkipped };

  // The name of the check, such as "clock".
  std::string name;
  Result result = Result::kOk;
  std::string found;
  // How to fix it; empty if nothing is wrong or another check says it.
  std::string fix;

  static Check Ok(const std::string& name, const std::string& found) {
    return {.name = name, .found = found};
  }
  static Check Warning(const std::string& name, const std::string& found,
                       const std::string& fix) {
    return {name, Result::kWarning, found, fix};
  }
  static Check Failed(const std::string& name, const std::string& found,
                      const std::string& fix = "") {
    return {name, Result::kFailed, found, fix};
  }
  static Check Skipped(const std::string& name, const std::string& found) {
    return {.name = name, .result = Result::kSkipped, .found = found};
  }
};

}  // namespace cohort
