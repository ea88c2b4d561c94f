#pragma once

#include <string>

#include "server/metrics/run_figures.h"

namespace cohort {

// The live page as one HTML file that shows `figures` and needs neither the
// server nor a network. All text from outside is escaped.
std::string ReportPage(const RunFigures& figures);

}  // namespace cohort
