#pragma once

#include <string>
#include <vector>

#include "common/ids.h"
#include "server/metrics/run_stats.h"

namespace cohort {

// First line of history.csv, with its newline.
extern const char kHistoryHeader[];

// Reads the rows of history.csv, up to the version from which the run
// continues. Rows that cannot be read are skipped.
//
// The last commits before that version may not be in a row yet; their duration
// is estimated from the rows before them.
EarlierHistory EarlierHistoryOf(const std::vector<std::string>& rows,
                                Version restored);

}  // namespace cohort
