#pragma once

#include <cstdint>

#include "server/metrics/run_figures.h"

namespace cohort {

// A run with `workers` ranks in which nothing has happened. All metrics that
// always exist are there.
RunFigures EmptyFigures(int32_t workers);

// The same run in the middle of training, with all ranks busy.
RunFigures BusyFigures(int32_t workers);

}  // namespace cohort
