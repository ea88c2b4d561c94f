#pragma once

#include <string>

#include "server/metrics/run_figures.h"

namespace cohort {

// What a status contains beside the numbers of the moment.
enum class StatusParts {
  kNone,
  // Curves, events and the history of the policy.
  kAll,
};

// The status document, v1.Status in proto/cohort/v1/admin.proto, as JSON.
// Text that is not UTF-8 is shown with replacement characters.
std::string StatusJson(const RunFigures& figures, StatusParts parts);

}  // namespace cohort
