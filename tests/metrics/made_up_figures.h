#pragma once

#include <cstdint>

#include "server/metrics/run_figures.h"

namespace cohort {

// A run in which nobody has done anything, with so many ranks: all that is
// always there, is.
RunFigures EmptyFigures(int32_t workers);

// The same in the middle of training, of all ranks.
RunFigures BusyFigures(int32_t workers);

}  // namespace cohort
