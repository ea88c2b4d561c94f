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
};

}  // namespace cohort
