#pragma once

#include <gmock/gmock.h>

#include "absl/strings/match.h"

namespace cohort {

// Matches the CtlResult of a run with this exit code that has printed nothing
// but an error that contains `part`.
MATCHER_P2(PrintsError, code, part, "") {
  *result_listener << "exit code " << arg.code << ", out: " << arg.out
                   << ", err: " << arg.err;
  return arg.code == code && arg.out.empty() &&
         absl::StrContains(arg.err, part);
}

}  // namespace cohort
