#pragma once

#include <string>

namespace cohort {

// What one look of `cohortctl doctor` found.
struct Check {
  enum class Result { kOk, kWarning, kFailed, kSkipped };

  // What was looked at, such as "clock".
  std::string name;
  Result result = Result::kOk;
  std::string found;
  // What helps; empty if nothing is wrong.
  std::string fix;
};

}  // namespace cohort
