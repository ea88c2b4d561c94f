#pragma once

#include <string>

#include "server/metrics/run_figures.h"

namespace cohort {

// The figures as the page reads them. Numbers are JSON numbers, what is unknown
// is null, durations are seconds, times are seconds since 1970. README.md says
// what is what. Text that is not UTF-8 is shown with replacement marks.
std::string StatusJson(const RunFigures& figures);

}  // namespace cohort
