#pragma once

#include <string>

#include "server/metrics/run_figures.h"

namespace cohort {

// The figures in the form that the page reads. Numbers are JSON numbers,
// unknown values are null, durations are seconds, times are seconds since 1970.
// README.md describes the fields. Text that is not UTF-8 is shown with
// replacement characters.
std::string StatusJson(const RunFigures& figures);

}  // namespace cohort
